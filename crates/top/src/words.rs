//! Formats numbers for people.

/// Formats a number with about three digits.
pub(crate) fn count(n: f64) -> String {
    match n {
        n if n.is_nan() => "-".to_owned(),
        n if n >= 1e7 => format!("{:.0}M", n / 1e6),
        n if n >= 1e6 => format!("{:.1}M", n / 1e6),
        n if n >= 1e5 => format!("{:.0}k", n / 1e3),
        n if n >= 1e4 => format!("{:.1}k", n / 1e3),
        n if n >= 10.0 || n.fract() == 0.0 => format!("{n:.0}"),
        n => format!("{n:.1}"),
    }
}

pub(crate) fn bytes(n: f64) -> String {
    if n.is_nan() {
        return "-".to_owned();
    }
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let unit = units.iter().enumerate().rev().find(|(i, _)| n >= 1024f64.powi(*i as i32));
    let (power, name) = unit.unwrap_or((0, &"B"));
    let value = n / 1024f64.powi(power as i32);
    if value >= 10.0 || power == 0 {
        format!("{value:.0} {name}")
    } else {
        format!("{value:.1} {name}")
    }
}

/// Formats a time in microseconds.
pub(crate) fn time(micros: f64) -> String {
    match micros {
        m if m < 1e3 => format!("{m:.0} µs"),
        m if m < 1e4 => format!("{:.1} ms", m / 1e3),
        m if m < 1e6 => format!("{:.0} ms", m / 1e3),
        m => format!("{:.1} s", m / 1e6),
    }
}

/// Formats the upper bound of a wait, in microseconds.
pub(crate) fn wait(micros: f64) -> String {
    if micros > 0.0 { format!("≤ {}", time(micros)) } else { time(0.0) }
}

/// Formats a long time in seconds.
pub(crate) fn age(seconds: f64) -> String {
    let s = seconds.max(0.0) as u64;
    match s {
        0..60 => format!("{s} s"),
        60..3600 => format!("{} min", s / 60),
        3600..86400 => format!("{} h {} min", s / 3600, s % 3600 / 60),
        _ => format!("{} d {} h", s / 86400, s % 86400 / 3600),
    }
}

pub(crate) fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

/// Cuts a text to this width and marks the cut.
pub(crate) fn cut(text: &str, room: usize) -> String {
    if text.chars().count() <= room {
        return text.to_owned();
    }
    let kept: String = text.chars().take(room.saturating_sub(1)).collect();
    if room == 0 { kept } else { kept + "…" }
}
