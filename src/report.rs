//! A run as JSON, Markdown or HTML.
