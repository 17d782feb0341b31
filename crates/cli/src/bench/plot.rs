//! Plots the times as SVG: one panel per run and collective, both axes logarithmic, one line per
//! system with bars for the middle 80 % of its rounds. SVG is text, so we need no library.

use std::fmt::Write as _;

use ronde_control::bench::{Benchmark, Figures};

use super::results::{BenchRun, SYSTEMS};
use super::units;

const PANEL: (f64, f64) = (520.0, 340.0);
/// Space left of, right of, above and below the axes of a panel.
const MARGIN: (f64, f64, f64, f64) = (72.0, 20.0, 44.0, 52.0);
const TOP: f64 = 64.0;
/// Colors that most people can distinguish, in the order of the systems.
const COLORS: [&str; 6] = ["#d55e00", "#cc79a7", "#e69f00", "#0072b2", "#009e73", "#888888"];

/// One line of a panel: the index of a system in the table of systems, and its points.
struct PlotLine {
    system: usize,
    points: Vec<(u64, Figures)>,
}

struct Panel {
    title: String,
    lines: Vec<PlotLine>,
}

/// All runs in one drawing. Benchmarks without sizes appear only in the table.
pub(super) fn svg(runs: &[BenchRun]) -> String {
    let panels: Vec<Panel> = runs.iter().flat_map(panels).collect();
    let columns = panels.len().clamp(1, 2);
    let rows = panels.len().div_ceil(columns).max(1);
    let (width, height) = (PANEL.0 * columns as f64, TOP + PANEL.1 * rows as f64);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
         width=\"{width}\" height=\"{height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    let machine = runs.first().map(|run| &run.machine);
    let machine = machine.map(|machine| format!("{}, {} cores", machine.cpu, machine.cores));
    let title = format!("Time per call on {}", machine.unwrap_or_default());
    text(&mut out, (16.0, 24.0), "font-size=\"15\" font-weight=\"bold\"", &title);
    legend(&mut out, &panels);
    for (number, panel) in panels.iter().enumerate() {
        let x = PANEL.0 * (number % columns) as f64;
        let y = TOP + PANEL.1 * (number / columns) as f64;
        let _ = writeln!(out, "<g transform=\"translate({x} {y})\">");
        draw(&mut out, panel);
        out += "</g>\n";
    }
    if panels.is_empty() {
        let nothing = "nothing was measured at different sizes";
        text(&mut out, (16.0, TOP + 24.0), "", nothing);
    }
    out + "</svg>\n"
}

fn panels(run: &BenchRun) -> Vec<Panel> {
    let place = match (run.hosts, run.transport.as_str()) {
        (2.., _) => format!("{} hosts", run.hosts),
        (_, "tcp") => "TCP".to_owned(),
        _ => "shared memory".to_owned(),
    };
    let sized = run.collectives().into_iter().filter(|collective| collective.has_sizes());
    let panel = |collective: Benchmark| Panel {
        title: format!("{collective}, {} ranks, {place}", run.ranks),
        lines: lines(run, collective),
    };
    sized.map(panel).collect()
}

fn lines(run: &BenchRun, collective: Benchmark) -> Vec<PlotLine> {
    let points = |system: &str| {
        let rows = run.rows_of(collective).into_iter();
        let mut points: Vec<(u64, Figures)> =
            rows.filter_map(|row| Some((row.bytes, row.figures(system)?))).collect();
        points.sort_by_key(|(bytes, _)| *bytes);
        points
    };
    let all = SYSTEMS.iter().enumerate();
    let lines = all.map(|(system, (name, _))| PlotLine { system, points: points(name) });
    lines.filter(|line| !line.points.is_empty()).collect()
}

/// The systems that have a line in any panel, above all panels.
fn legend(out: &mut String, panels: &[Panel]) {
    let mut x = 16.0;
    for (system, (_, name)) in SYSTEMS.iter().enumerate() {
        let has_line = |panel: &Panel| panel.lines.iter().any(|line| line.system == system);
        if !panels.iter().any(has_line) {
            continue;
        }
        let style = stroke(system);
        let _ = writeln!(out, "<path d=\"M{x} 44h24\" {style}/>");
        text(out, (x + 30.0, 48.0), "", name);
        x += 60.0 + 7.0 * name.len() as f64;
    }
}

fn draw(out: &mut String, panel: &Panel) {
    let (left, right, top, bottom) = MARGIN;
    let points = || panel.lines.iter().flat_map(|line| &line.points);
    let mut sizes: Vec<u64> = points().map(|(bytes, _)| *bytes).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let low = points().map(|(_, figures)| figures.p10).fold(f64::INFINITY, f64::min);
    let high = points().map(|(_, figures)| figures.p90).fold(0.0, f64::max);
    // Whole powers of ten, so that each grid line has a round number.
    let decades = (low.log10().floor() as i32, high.log10().ceil() as i32);
    let decades = (decades.0, decades.1.max(decades.0 + 1));
    let (first, last) = (sizes[0].max(1) as f64, sizes[sizes.len() - 1].max(2) as f64);
    let span = (last / first).ln().max(f64::EPSILON);
    let x = |bytes: u64| {
        let part = if sizes.len() == 1 { 0.5 } else { (bytes.max(1) as f64 / first).ln() / span };
        left + part * (PANEL.0 - left - right)
    };
    let y = |seconds: f64| {
        let part = (seconds.log10() - f64::from(decades.0)) / f64::from(decades.1 - decades.0);
        PANEL.1 - bottom - part * (PANEL.1 - top - bottom)
    };
    let bold = "font-weight=\"bold\" text-anchor=\"middle\"";
    text(out, (PANEL.0 / 2.0, 24.0), bold, &panel.title);
    axes(out, &sizes, decades, &x, &y);
    for line in &panel.lines {
        curve(out, line, &x, &y);
    }
}

fn axes(
    out: &mut String,
    sizes: &[u64],
    decades: (i32, i32),
    x: &dyn Fn(u64) -> f64,
    y: &dyn Fn(f64) -> f64,
) {
    let (left, right, top, bottom) = MARGIN;
    let (end, floor) = (PANEL.0 - right, PANEL.1 - bottom);
    for decade in decades.0..=decades.1 {
        let seconds = 10f64.powi(decade);
        let at = y(seconds);
        let _ = writeln!(out, "<path d=\"M{left} {at:.1}H{end}\" stroke=\"#dddddd\"/>");
        text(out, (left - 8.0, at + 4.0), "text-anchor=\"end\"", &round(seconds));
    }
    // Overlapping labels are left out, but their grid lines are drawn.
    let mut free = 0.0;
    for bytes in sizes {
        let at = x(*bytes);
        let _ = writeln!(out, "<path d=\"M{at:.1} {top}V{floor}\" stroke=\"#eeeeee\"/>");
        let label = units::bytes(*bytes);
        let half = 3.5 * label.len() as f64;
        if at - half >= free {
            text(out, (at, floor + 18.0), "text-anchor=\"middle\"", &label);
            free = at + half + 4.0;
        }
    }
    let _ =
        writeln!(out, "<path d=\"M{left} {top}V{floor}H{end}\" fill=\"none\" stroke=\"black\"/>");
    let middle = (left + end) / 2.0;
    text(out, (middle, floor + 40.0), "text-anchor=\"middle\"", "bytes per rank");
    let at = (top + floor) / 2.0;
    let turned = format!("text-anchor=\"middle\" transform=\"rotate(-90 16 {at})\"");
    text(out, (16.0, at), &turned, "time per call");
}

fn curve(out: &mut String, line: &PlotLine, x: &dyn Fn(u64) -> f64, y: &dyn Fn(f64) -> f64) {
    let color = COLORS[line.system];
    let mut path = String::new();
    for (bytes, figures) in &line.points {
        let verb = if path.is_empty() { 'M' } else { 'L' };
        let _ = write!(path, "{verb}{:.1} {:.1}", x(*bytes), y(figures.median));
    }
    let _ = writeln!(out, "<path d=\"{path}\" {}/>", stroke(line.system));
    for (bytes, Figures { median, p10, p90 }) in &line.points {
        let (x, high, low) = (x(*bytes), y(*p90), y(*p10));
        let _ = writeln!(out, "<path d=\"M{x:.1} {high:.1}V{low:.1}\" stroke=\"{color}\"/>");
        let title = format!("{}: {}", SYSTEMS[line.system].1, units::seconds(*median));
        let _ = writeln!(
            out,
            "<circle cx=\"{x:.1}\" cy=\"{:.1}\" r=\"3\" fill=\"{color}\"><title>{}</title></circle>",
            y(*median),
            escaped(&title)
        );
    }
}

fn stroke(system: usize) -> String {
    let dashes = if system == SYSTEMS.len() - 1 { " stroke-dasharray=\"4 3\"" } else { "" };
    format!("fill=\"none\" stroke=\"{}\" stroke-width=\"2\"{dashes}", COLORS[system])
}

fn text(out: &mut String, at: (f64, f64), attributes: &str, text: &str) {
    let text = escaped(text);
    let _ = writeln!(out, "<text x=\"{:.1}\" y=\"{:.1}\" {attributes}>{text}</text>", at.0, at.1);
}

/// Formats a power of ten without decimals.
fn round(seconds: f64) -> String {
    match seconds {
        ..0.9e-6 => format!("{:.0} ns", seconds * 1e9),
        ..0.9e-3 => format!("{:.0} µs", seconds * 1e6),
        ..0.9 => format!("{:.0} ms", seconds * 1e3),
        _ => format!("{seconds:.0} s"),
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::results::sample;

    #[test]
    fn every_system_has_a_line_and_a_label() {
        let drawing = svg(&[sample()]);
        for (_, name) in SYSTEMS {
            assert!(drawing.contains(&format!(">{name}</text>")), "{name}");
        }
        for text in ["allreduce, 2 ranks, shared memory", "64 MiB", "1 µs", "bytes per rank"] {
            assert!(drawing.contains(text), "{text}");
        }
        assert!(!drawing.contains("NaN") && !drawing.contains("inf"));
    }

    #[test]
    fn a_larger_tensor_is_further_right_and_a_longer_time_further_up() {
        let drawing = svg(&[sample()]);
        let circles: Vec<(f64, f64)> = drawing
            .lines()
            .filter(|line| line.starts_with("<circle") && line.contains(">Ronde:"))
            .map(|line| (number(line, "cx=\""), number(line, "cy=\"")))
            .collect();
        assert_eq!(circles.len(), 2);
        assert!(circles[0].0 < circles[1].0);
        assert!(circles[0].1 > circles[1].1);
    }

    fn number(line: &str, name: &str) -> f64 {
        let start = line.find(name).unwrap() + name.len();
        line[start..].split('"').next().unwrap().parse().unwrap()
    }

    #[test]
    fn machine_names_are_escaped() {
        let mut run = sample();
        run.machine.cpu = "A<B> & C".into();
        assert!(svg(&[run]).contains("A&lt;B&gt; &amp; C"));
    }

    #[test]
    fn a_single_size_or_none_can_be_plotted() {
        let mut run = sample();
        run.rows.truncate(1);
        assert!(!svg(&[run.clone()]).contains("NaN"));
        run.rows.clear();
        assert!(svg(&[run]).contains("nothing was measured"));
    }
}
