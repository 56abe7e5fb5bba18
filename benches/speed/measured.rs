//! What came out of a comparison, round by round, and whether its target is met?

use comfy_table::{CellAlignment, Table, presets};
use serde_json::json;

use crate::rows::Row;

/// What the ratio of ours to the reference must be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Target {
    AtLeast(f64),
    AtMost(f64),
}

/// One comparison: the figures of ours and of the reference, in the same unit and round by round.
#[derive(Debug, Clone)]
pub(crate) struct Measured {
    pub(crate) name: String,
    pub(crate) unit: &'static str,
    pub(crate) rounds: Vec<(f64, f64)>,
    pub(crate) target: Target,
}

// === impl Target ===

impl Target {
    fn value(self) -> f64 {
        match self {
            Self::AtLeast(value) | Self::AtMost(value) => value,
        }
    }

    fn says(self) -> String {
        match self {
            Self::AtLeast(value) => format!("at least {value}"),
            Self::AtMost(value) => format!("at most {value}"),
        }
    }

    fn is_met(self, ratio: f64) -> bool {
        match self {
            Self::AtLeast(value) => ratio >= value,
            Self::AtMost(value) => ratio <= value,
        }
    }
}

// === impl Measured ===

impl Measured {
    /// The rounds' ratios, ascending.
    fn ratios(&self) -> Vec<f64> {
        let mut ratios: Vec<f64> = self.rounds.iter().map(|(o, r)| o / r).collect();
        ratios.sort_by(f64::total_cmp);
        ratios
    }

    fn ratio(&self) -> f64 {
        median(self.ratios())
    }

    fn ours(&self) -> f64 {
        median(self.rounds.iter().map(|(ours, _)| *ours).collect())
    }

    fn reference(&self) -> f64 {
        median(self.rounds.iter().map(|(_, r)| *r).collect())
    }

    pub(crate) fn is_met(&self) -> bool {
        self.target.is_met(self.ratio())
    }

    pub(crate) fn row(&self) -> Row {
        let ratios = self.ratios();
        let more = json!({
            "unit": self.unit,
            "target_is": self.target.says(),
            "met": self.is_met(),
            "rounds": self.rounds.len(),
            "ratio_min": ratios.first(),
            "ratio_max": ratios.last(),
        });
        Row {
            name: self.name.clone(),
            ours: self.ours(),
            reference: self.reference(),
            ratio: self.ratio(),
            target: self.target.value(),
            more: more.as_object().cloned().unwrap_or_default(),
        }
    }
}

/// Not a number when there is nothing: then no target is met.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => values[n / 2],
        n => f64::midpoint(values[n / 2 - 1], values[n / 2]),
    }
}

pub(crate) fn table(measured: &[Measured]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header([
        "figure",
        "ours",
        "reference",
        "unit",
        "ratio",
        "(min to max)",
        "target",
        "",
    ]);
    for m in measured {
        let ratios = m.ratios();
        let (min, max) = (ratios.first(), ratios.last());
        table.add_row([
            m.name.clone(),
            figure(m.ours()),
            figure(m.reference()),
            m.unit.to_string(),
            format!("{:.2}", m.ratio()),
            format!(
                "({:.2} to {:.2})",
                min.unwrap_or(&f64::NAN),
                max.unwrap_or(&f64::NAN)
            ),
            m.target.says(),
            match m.is_met() {
                true => "met",
                false => "MISSED",
            }
            .to_string(),
        ]);
    }
    for column in [1, 2, 4] {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

fn figure(value: f64) -> String {
    match value {
        large if large >= 100.0 => format!("{large:.0}"),
        small => format!("{small:.2}"),
    }
}
