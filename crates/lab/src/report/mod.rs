//! Writes findings to files, and makes one page of them.

mod chart;
mod html;
mod machine;
mod take_home;

use std::fmt::{self, Write as _};
use std::path::{Path, PathBuf};
use std::{fs, io};

use serde::{Deserialize, Serialize};

use crate::experiment::Experiment;
use crate::experiments::ALL;
use crate::finding::{LabFinding, wrap};

pub(crate) use machine::{MachineFacts, Noise};

/// weir's default ways.
const OWN: [&str; 3] = ["fair", "taken over", "weir, all in threads"];

/// A finished experiment, as the page needs it.
#[derive(Debug, Serialize, Deserialize)]
struct ExperimentRecord {
    finding: LabFinding,
    machine: MachineFacts,
    /// The greatest noise before its rounds.
    noise: Noise,
}

/// A finding as text: the question, the published results, and the results of this machine.
pub(crate) fn text(experiment: &Experiment, finding: &LabFinding) -> String {
    let mut out = format!("{}: {}\n", experiment.name, wrap(experiment.question));
    let _ = writeln!(out, "{}", wrap(&format!("Published: {}", experiment.published)));
    out + &finding.text()
}

/// Why a finding or the page cannot be written.
#[derive(Debug)]
pub(crate) enum ReportError {
    NoDirectory(PathBuf, io::Error),
    Unwritten(PathBuf, io::Error),
    Unencoded(serde_json::Error),
    /// Another version of weir wrote the record.
    Foreign(PathBuf, serde_json::Error),
    /// The directory has no findings.
    Nothing(PathBuf),
}

impl fmt::Display for ReportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReportError::NoDirectory(path, e) => write!(f, "cannot make {}: {e}", path.display()),
            ReportError::Unwritten(path, e) => write!(f, "cannot write {}: {e}", path.display()),
            ReportError::Unencoded(e) => e.fmt(f),
            ReportError::Foreign(path, e) => {
                write!(f, "{} is of another weir: {e}", path.display())
            }
            ReportError::Nothing(dir) => {
                write!(f, "{} has no findings; weir lab run all makes some", dir.display())
            }
        }
    }
}

/// Writes the files of a finding into `dir`.
pub(crate) fn write(
    dir: &Path,
    experiment: &Experiment,
    finding: &LabFinding,
    machine: &MachineFacts,
    noise: Noise,
) -> Result<(), ReportError> {
    let name = experiment.name;
    let put = |name: &str, text: &str| {
        let file = dir.join(name);
        fs::write(&file, text).map_err(|e| ReportError::Unwritten(file, e))
    };
    fs::create_dir_all(dir).map_err(|e| ReportError::NoDirectory(dir.to_owned(), e))?;
    let head = wrap(&format!("{} {}", machine.text(), noise.text()));
    put(&format!("{name}.txt"), &format!("{head}\n{}", text(experiment, finding)))?;
    let record = ExperimentRecord { finding: finding.clone(), machine: machine.clone(), noise };
    let record = serde_json::to_string(&record).map_err(ReportError::Unencoded)?;
    put(&format!("{name}.json"), &record)?;
    for (part, tsv) in &finding.raw {
        put(&format!("{name}-{part}.tsv"), tsv)?;
    }
    Ok(())
}

/// Writes one self-contained page with all findings to `dir`. Returns its path and the number of
/// findings.
pub(crate) fn write_page(dir: &Path) -> Result<(PathBuf, usize), ReportError> {
    let mut found = Vec::new();
    for experiment in ALL {
        let path = dir.join(format!("{}.json", experiment.name));
        let Ok(text) = fs::read_to_string(&path) else { continue };
        let record = serde_json::from_str(&text).map_err(|e| ReportError::Foreign(path, e))?;
        found.push((experiment, record));
    }
    if found.is_empty() {
        return Err(ReportError::Nothing(dir.to_owned()));
    }
    let file = dir.join("report.html");
    match fs::write(&file, html::page(&found)) {
        Ok(()) => Ok((file, found.len())),
        Err(e) => Err(ReportError::Unwritten(file, e)),
    }
}
