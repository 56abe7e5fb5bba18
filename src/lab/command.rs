//! What do `flashlock lab up`, `down` and `status` do?
