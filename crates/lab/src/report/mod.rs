//! Files of findings, and one page of them all.

mod chart;
mod html;
mod machine;

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::experiment::Experiment;
use crate::experiments::ALL;
use crate::finding::{LabFinding, wrap};

pub(crate) use machine::MachineFacts;

/// What the page needs to know of a finished experiment.
#[derive(Debug, Serialize, Deserialize)]
struct ExperimentRecord {
    finding: LabFinding,
    machine: MachineFacts,
}

/// A finding as text: the question, the published results, the results here.
pub(crate) fn text(experiment: &Experiment, finding: &LabFinding) -> String {
    let mut out = format!("{}: {}\n", experiment.name, wrap(experiment.question));
    let _ = writeln!(out, "{}", wrap(&format!("Published: {}", experiment.published)));
    out + &finding.text()
}

/// Writes the files of a finding into `dir`.
pub(crate) fn write(
    dir: &Path,
    experiment: &Experiment,
    finding: &LabFinding,
    machine: &MachineFacts,
) -> Result<(), String> {
    let name = experiment.name;
    let put = |name: &str, text: &str| {
        let file = dir.join(name);
        fs::write(&file, text).map_err(|e| format!("cannot write {}: {e}", file.display()))
    };
    fs::create_dir_all(dir).map_err(|e| format!("cannot make {}: {e}", dir.display()))?;
    let said = wrap(&machine.text());
    put(&format!("{name}.txt"), &format!("{}\n{said}", text(experiment, finding)))?;
    let record = ExperimentRecord { finding: finding.clone(), machine: machine.clone() };
    let record = serde_json::to_string(&record).map_err(|e| e.to_string())?;
    put(&format!("{name}.json"), &record)?;
    for (part, tsv) in &finding.raw {
        put(&format!("{name}-{part}.tsv"), tsv)?;
    }
    Ok(())
}

/// One self-contained page with all findings in `dir`: the page, and their number.
pub(crate) fn page(dir: &Path) -> Result<(String, usize), String> {
    let mut found = Vec::new();
    for experiment in ALL {
        let path = dir.join(format!("{}.json", experiment.name));
        let Ok(text) = fs::read_to_string(&path) else { continue };
        let record: ExperimentRecord = serde_json::from_str(&text)
            .map_err(|e| format!("{} is of another weir: {e}", path.display()))?;
        found.push((experiment, record));
    }
    let count = found.len();
    Ok((html::page(&found), count))
}
