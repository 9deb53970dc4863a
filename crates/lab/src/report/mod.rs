//! Files of findings, and one page of them all.

mod html;

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use crate::experiments::{ALL, Experiment};
use crate::finding::{Finding, wrap};

/// A finding as text: the question, what others saw, what was seen here.
pub(crate) fn text(experiment: &Experiment, finding: &Finding) -> String {
    let mut out = format!("{}: {}\n", experiment.name, wrap(experiment.question));
    let _ = writeln!(out, "{}", wrap(&format!("Published: {}", experiment.published)));
    out + &finding.text()
}

/// Writes the files of a finding into `dir`.
pub(crate) fn write(dir: &Path, experiment: &Experiment, finding: &Finding) -> Result<(), String> {
    let name = experiment.name;
    let put = |name: &str, text: &str| {
        let file = dir.join(name);
        fs::write(&file, text).map_err(|e| format!("cannot write {}: {e}", file.display()))
    };
    fs::create_dir_all(dir).map_err(|e| format!("cannot make {}: {e}", dir.display()))?;
    put(&format!("{name}.txt"), &format!("{}\n{}\n", text(experiment, finding), machine()))?;
    put(&format!("{name}.html"), &html::section(experiment, finding, &machine()))?;
    for (part, tsv) in &finding.raw {
        put(&format!("{name}-{part}.tsv"), tsv)?;
    }
    for (part, svg) in &finding.pictures {
        put(&format!("{name}-{part}.svg"), svg)?;
    }
    Ok(())
}

/// One page with all findings in `dir`, which needs nothing else: the page, and how many there are.
pub(crate) fn page(dir: &Path) -> (String, usize) {
    let read = |name: &str| fs::read_to_string(dir.join(format!("{name}.html"))).ok();
    let found: Vec<_> = ALL.iter().filter_map(|e| Some((e, read(e.name)?))).collect();
    (html::page(&found), found.len())
}

/// The machine that the figures are of.
pub(crate) fn machine() -> String {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let kernel = rustix::system::uname();
    let kernel = kernel.release().to_string_lossy().into_owned();
    let seconds = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let day = day(seconds.map_or(0, |d| d.as_secs() / 86_400));
    format!("{day}, {cpus} CPUs, Linux {kernel}; servers and client share the machine.")
}

/// A day by its number since 1970 in the calendar, as `2026-01-31`.
fn day(since_1970: u64) -> String {
    // Years begin in March here, so that the leap day is the last of one; an era has 400 of them.
    let days = since_1970 + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = year + era * 400 + u64::from(month <= 2);
    format!("{year}-{month:02}-{day:02}")
}

#[cfg(test)]
mod tests {
    #[test]
    fn days_have_dates() {
        for (number, text) in [
            (0, "1970-01-01"),
            (19_782, "2024-02-29"),
            (19_783, "2024-03-01"),
            (20_818, "2026-12-31"),
        ] {
            assert_eq!(super::day(number), text);
        }
    }
}
