//! The two pictures of the page, as SVG without fonts: goodput and latency by strategy.
//!
//! A strategy's name stands above its bar, so that a picture is narrow enough for a phone. Colours
//! are roles: the page's style sheet replaces each by its own, light or dark.

use minijinja::HtmlEscape;
use plotters::coord::Shift;
use plotters::coord::ranged1d::Ranged;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::{
    Cartesian2d, ChartBuilder, ChartContext, Circle, DrawingArea, IntoDrawingArea, IntoLogRange,
    PathElement, Polygon, Rectangle, SVGBackend, TRANSPARENT, Text, TextStyle,
};
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{Color, RGBColor, ShapeStyle};

use super::ReportError;
use super::rows::{self, Kind};
use crate::run::{Cell, Run, Verdict};

/// Units of the picture's own coordinates.
const WIDTH: u32 = 520;
const ROW_HEIGHT: u32 = 46;
const AXIS_HEIGHT: u32 = 44;
const LEGEND_HEIGHT: u32 = 26;
const MARGIN: u32 = 6;
/// The outer labels of an axis are centred on its ends: half of `10000` stands beyond.
const AXIS_LABEL_OVERHANG: u32 = 18;
const FONT_SIZE: i32 = 18;
const AXIS_FONT_SIZE: i32 = 16;

/// A colour by what it is for: its name in the style sheet, and its value on white.
pub(super) const PALETTE: [(&str, RGBColor); 6] = [
    ("ink", INK),
    ("muted", MUTED),
    ("grid", GRID),
    ("bar", BAR),
    ("control", CONTROL),
    ("violated", VIOLATED),
];
const INK: RGBColor = RGBColor(0x1C, 0x25, 0x30);
const MUTED: RGBColor = RGBColor(0x56, 0x62, 0x70);
const GRID: RGBColor = RGBColor(0xDD, 0xE1, 0xE6);
const BAR: RGBColor = RGBColor(0x2A, 0x62, 0xA6);
const CONTROL: RGBColor = RGBColor(0x8A, 0x6D, 0x3B);
const VIOLATED: RGBColor = RGBColor(0xB3, 0x26, 0x1E);

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Orders booked per second, one bar per strategy.
pub(super) fn goodput(run: &Run) -> Result<String, ReportError> {
    let cells = ran(run);
    let words = cells.iter().map(|c| {
        format!(
            "{} {}",
            rows::name(run, c),
            rows::figure_or_dash(c.goodput_per_s)
        )
    });
    let picture = Picture {
        id: "goodput",
        title: "Goodput: orders booked per second, by strategy",
        says: words.collect::<Vec<_>>().join("; "),
        height: height(cells.len()),
    };
    picture.draw(|root| {
        let highest = cells
            .iter()
            .filter_map(|c| c.goodput_per_s)
            .fold(0.0, f64::max);
        let end = if highest > 0.0 { highest * 1.02 } else { 1.0 };
        let mut chart = builder(root).build_cartesian_2d(0.0..end, 0.0..cells.len() as f64)?;
        axis(&mut chart, "orders booked per second")?;
        for (i, cell) in cells.iter().enumerate() {
            let y = middle(cells.len(), i);
            let value = cell.goodput_per_s.unwrap_or(0.0);
            let corners = [(0.0, y - 0.38), (value, y - 0.06)];
            chart.draw_series([Rectangle::new(corners, fill(cell))])?;
            if rows::kind(cell) == Kind::Control {
                chart.draw_series([Rectangle::new(corners, color(cell).stroke_width(2))])?;
            }
            let top = chart.backend_coord(&(0.0, y));
            label(
                root,
                run,
                cell,
                top.1,
                &rows::figure_or_dash(cell.goodput_per_s),
            )?;
        }
        Ok(())
    })
}

/// Median, p90 and p99 of each strategy on a logarithmic scale.
pub(super) fn latency(run: &Run) -> Result<String, ReportError> {
    let cells = ran(run);
    let figures = |c: &Cell| {
        let q = &c.latency_ms;
        [q.p50, q.p90, q.p99].map(rows::figure_or_dash).join(" · ")
    };
    let words = cells
        .iter()
        .map(|c| format!("{} {}", rows::name(run, c), figures(c)));
    let picture = Picture {
        id: "latency",
        title: "Latency: p50, p90 and p99 in milliseconds, by strategy, on a logarithmic scale",
        says: words.collect::<Vec<_>>().join("; "),
        height: height(cells.len()) + LEGEND_HEIGHT,
    };
    picture.draw(|root| {
        let (top, body) = root.split_vertically(LEGEND_HEIGHT);
        legend(&top)?;
        let (low, high) = decades(&cells);
        let mut chart =
            builder(&body).build_cartesian_2d((low..high).log_scale(), 0.0..cells.len() as f64)?;
        axis(
            &mut chart,
            "milliseconds from the click to the final answer, logarithmic",
        )?;
        for (i, cell) in cells.iter().enumerate() {
            let y = middle(cells.len(), i);
            let at = |ms: f64| chart.backend_coord(&(ms.max(low), y - 0.2));
            let q = &cell.latency_ms;
            let points = [q.p50, q.p90, q.p99].map(|ms| ms.map(at));
            let there: Vec<(i32, i32)> = points.iter().flatten().copied().collect();
            if let (Some(first), Some(last)) = (there.first(), there.last()) {
                let line = color(cell).mix(0.45).stroke_width(3);
                root.draw(&PathElement::new(vec![*first, *last], line))?;
            }
            for (mark, point) in Mark::ALL.into_iter().zip(points) {
                if let Some(point) = point {
                    mark.draw(root, point, color(cell))?;
                }
            }
            let name_y = chart.backend_coord(&(low, y)).1;
            label(root, run, cell, name_y, &format!("{} ms", figures(cell)))?;
        }
        Ok(())
    })
}

/// A picture with what a screen reader says for it.
struct Picture {
    id: &'static str,
    title: &'static str,
    says: String,
    height: u32,
}

/// The shape of a quantile: told apart without colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mark {
    Median,
    P90,
    P99,
}

// === impl Picture ===

type DrawError = Box<dyn std::error::Error + Send + Sync>;

impl Picture {
    fn draw(
        &self,
        contents: impl FnOnce(&Area<'_>) -> Result<(), DrawError>,
    ) -> Result<String, ReportError> {
        let mut svg = String::new();
        let root = SVGBackend::with_string(&mut svg, (WIDTH, self.height)).into_drawing_area();
        contents(&root)
            .and_then(|()| Ok(root.present()?))
            .map_err(|source| ReportError::Render { source })?;
        drop(root);
        // The element's own head: no namespace address, which HTML does not need; scaled by the
        // page; and words for who cannot see it.
        let body = svg.split_once('>').map_or("", |(_, body)| body);
        Ok(format!(
            "<svg class=\"chart\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" \
             aria-labelledby=\"{id}-title {id}-says\">\
             <title id=\"{id}-title\">{title}</title><desc id=\"{id}-says\">{says}</desc>{body}",
            height = self.height,
            id = self.id,
            title = HtmlEscape(self.title),
            says = HtmlEscape(&self.says),
        ))
    }
}

// === impl Mark ===

impl Mark {
    const ALL: [Self; 3] = [Self::Median, Self::P90, Self::P99];

    fn name(self) -> &'static str {
        match self {
            Self::Median => "p50",
            Self::P90 => "p90",
            Self::P99 => "p99",
        }
    }

    fn draw(self, area: &Area<'_>, (x, y): (i32, i32), color: RGBColor) -> Result<(), DrawError> {
        match self {
            Self::Median => area.draw(&Circle::new((x, y), 6, color.filled()))?,
            Self::P90 => area.draw(&Polygon::new(
                vec![(x, y - 7), (x + 7, y), (x, y + 7), (x - 7, y)],
                color.filled(),
            ))?,
            Self::P99 => area.draw(&Rectangle::new(
                [(x - 2, y - 9), (x + 2, y + 9)],
                color.filled(),
            ))?,
        }
        Ok(())
    }
}

fn ran(run: &Run) -> Vec<&Cell> {
    let cells = rows::sorted(run).into_iter();
    cells.filter(|c| rows::kind(c) != Kind::Skipped).collect()
}

fn height(count: usize) -> u32 {
    let count = u32::try_from(count.max(1)).unwrap_or(1);
    count * ROW_HEIGHT + AXIS_HEIGHT
}

/// Where the middle of row `i` is on an axis that goes up from 0 to `count`.
fn middle(count: usize, i: usize) -> f64 {
    (count - i) as f64 - 0.5
}

/// The powers of ten around all quantiles.
fn decades(cells: &[&Cell]) -> (f64, f64) {
    let all = cells
        .iter()
        .flat_map(|c| [c.latency_ms.p50, c.latency_ms.p90, c.latency_ms.p99]);
    let (mut low, mut high) = (f64::INFINITY, 0.0_f64);
    for ms in all.flatten().filter(|ms| *ms > 0.0) {
        low = low.min(ms);
        high = high.max(ms);
    }
    if high == 0.0 {
        return (1.0, 1000.0);
    }
    let low = 10_f64.powf(low.log10().floor());
    (low, 10_f64.powf(high.log10().ceil()).max(low * 10.0))
}

fn color(cell: &Cell) -> RGBColor {
    match (rows::kind(cell), cell.safety.verdict) {
        (Kind::Control, _) => CONTROL,
        (Kind::Judged | Kind::Skipped, Verdict::Violated) => VIOLATED,
        (Kind::Judged | Kind::Skipped, Verdict::Ok | Verdict::Unknown) => BAR,
    }
}

/// The control's bar is an outline around a tint: visibly not one of the others.
fn fill(cell: &Cell) -> ShapeStyle {
    match rows::kind(cell) {
        Kind::Control => color(cell).mix(0.22).filled(),
        Kind::Judged | Kind::Skipped => color(cell).filled(),
    }
}

fn words(color: RGBColor, size: i32, side: HPos) -> TextStyle<'static> {
    let mut style = TextStyle::from(("sans-serif", size)).pos(Pos::new(side, VPos::Bottom));
    style.color = color.to_backend_color();
    style
}

/// The strategy's name at the left and its figure at the right, above what is drawn for it.
fn label(root: &Area<'_>, run: &Run, cell: &Cell, y: i32, figure: &str) -> Result<(), DrawError> {
    let mut name = rows::name(run, cell);
    // Figures compare only within one class, so a bar beside one of another class names its own.
    if ran(run).iter().any(|c| c.durability != cell.durability) {
        name = format!("{name} · {}", cell.durability);
    }
    match (rows::kind(cell), cell.safety.verdict) {
        (Kind::Control, _) => name.push_str(" (control)"),
        (Kind::Judged | Kind::Skipped, Verdict::Ok) => {}
        (Kind::Judged | Kind::Skipped, verdict @ (Verdict::Violated | Verdict::Unknown)) => {
            name = format!("{name} ({})", rows::verdict(verdict));
        }
    }
    let left = (MARGIN + AXIS_LABEL_OVERHANG) as i32;
    let right = WIDTH as i32 - left;
    root.draw(&Text::new(
        name,
        (left, y),
        words(INK, FONT_SIZE, HPos::Left),
    ))?;
    root.draw(&Text::new(
        figure.to_string(),
        (right, y),
        words(INK, FONT_SIZE, HPos::Right),
    ))?;
    Ok(())
}

fn legend(area: &Area<'_>) -> Result<(), DrawError> {
    let mut x = (MARGIN + AXIS_LABEL_OVERHANG) as i32 + 7;
    for mark in Mark::ALL {
        mark.draw(area, (x, 14), BAR)?;
        area.draw(&Text::new(
            mark.name(),
            (x + 14, 20),
            words(MUTED, AXIS_FONT_SIZE, HPos::Left),
        ))?;
        x += 72;
    }
    Ok(())
}

fn builder<'a, 'b>(area: &'a Area<'b>) -> ChartBuilder<'a, 'b, SVGBackend<'b>> {
    let mut builder = ChartBuilder::on(area);
    builder
        .margin_left(MARGIN + AXIS_LABEL_OVERHANG)
        .margin_right(MARGIN + AXIS_LABEL_OVERHANG)
        .x_label_area_size(AXIS_HEIGHT);
    builder
}

/// The horizontal axis with its grid; rows need none.
fn axis<X>(
    chart: &mut ChartContext<'_, SVGBackend<'_>, Cartesian2d<X, RangedCoordf64>>,
    says: &str,
) -> Result<(), DrawError>
where
    X: Ranged<ValueType = f64> + plotters::coord::ranged1d::ValueFormatter<f64>,
{
    chart
        .configure_mesh()
        .disable_y_mesh()
        .disable_y_axis()
        .x_labels(5)
        .x_label_formatter(&|v| format!("{v}"))
        .light_line_style(TRANSPARENT)
        .bold_line_style(GRID)
        .axis_style(GRID)
        .label_style(words(MUTED, AXIS_FONT_SIZE, HPos::Left))
        .axis_desc_style(words(MUTED, AXIS_FONT_SIZE, HPos::Left))
        .x_desc(says)
        .draw()?;
    Ok(())
}
