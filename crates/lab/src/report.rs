//! Files of findings, and one page of them all.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use crate::experiments::{ALL, Experiment};
use crate::finding::{Finding, wrap};

/// A finding as text: the question, what others saw, what was seen here.
pub(crate) fn text(experiment: &Experiment, finding: &Finding) -> String {
    let mut out = format!("{}: {}\n", experiment.name, wrap(experiment.question));
    let _ = writeln!(out, "{}", wrap(&format!("Published: {}", experiment.published)));
    out + &finding.texts.join("\n")
}

/// Writes the files of a finding into `dir`.
pub(crate) fn write(dir: &Path, experiment: &Experiment, finding: &Finding) -> Result<(), String> {
    let put = |name: &str, text: &str| {
        let file = dir.join(name);
        fs::write(&file, text).map_err(|e| format!("cannot write {}: {e}", file.display()))
    };
    fs::create_dir_all(dir).map_err(|e| format!("cannot make {}: {e}", dir.display()))?;
    let text = format!("{}\n{}\n", text(experiment, finding), machine());
    put(&format!("{}.txt", experiment.name), &text)?;
    for (name, tsv) in &finding.raw {
        put(&format!("{}-{name}.tsv", experiment.name), tsv)?;
    }
    for (name, svg) in &finding.pictures {
        put(&format!("{}-{name}.svg", experiment.name), svg)?;
    }
    Ok(())
}

/// One page with all findings in `dir`, which needs nothing else: the page, and how many there are.
pub(crate) fn page(dir: &Path) -> (String, usize) {
    let (mut out, mut count) = (HEAD.to_owned(), 0);
    for experiment in ALL {
        let Ok(text) = fs::read_to_string(dir.join(format!("{}.txt", experiment.name))) else {
            continue;
        };
        count += 1;
        let _ = writeln!(out, "<section><h2>{}</h2>", escape(experiment.title));
        let _ = writeln!(out, "<p>{}</p>", escape(experiment.question));
        let _ = writeln!(out, "<p><b>What was published.</b> {}</p>", escape(experiment.published));
        // Question and published figures stand at the head of the text; they are not shown twice.
        let own = text.splitn(3, "\n\n").nth(2).unwrap_or(&text);
        let _ = writeln!(out, "<p><b>Here.</b></p><pre>{}</pre>", escape(own));
        for svg in pictures(dir, experiment.name) {
            let _ = writeln!(out, "<figure>{svg}</figure>");
        }
        out.push_str("</section>\n");
    }
    out.push_str("</body></html>\n");
    (out, count)
}

/// The machine that the figures are of.
pub(crate) fn machine() -> String {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let kernel = rustix::system::uname();
    let kernel = kernel.release().to_string_lossy().into_owned();
    format!("Machine: {cpus} CPUs, Linux {kernel}; server and client share it.")
}

fn pictures(dir: &Path, name: &str) -> Vec<String> {
    let prefix = format!("{name}-");
    let mut files: Vec<_> = fs::read_dir(dir)
        .map(|entries| entries.flatten().map(|entry| entry.path()).collect())
        .unwrap_or_default();
    files.retain(|path| {
        let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        name.starts_with(&prefix) && name.ends_with(".svg")
    });
    files.sort();
    files.iter().filter_map(|path| fs::read_to_string(path).ok()).collect()
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

const HEAD: &str = "<!DOCTYPE html>
<html lang=\"en\"><head><meta charset=\"utf-8\"><title>weir lab</title>
<style>
body { font: 16px/1.5 sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em; }
pre { background: #f4f4f4; padding: 1em; overflow-x: auto; font-size: 14px; line-height: 1.3; }
section { border-top: 1px solid #ccc; margin-top: 2em; }
svg { max-width: 100%; height: auto; }
</style></head><body>
<h1>Who gets the connection, and how long does it wait?</h1>
<p>A server with several workers must decide which of them takes a new connection. Workers may share one queue of waiting
connections, like the one line at a bank, or have a queue each, like the tills of a supermarket. What follows was measured on this
machine. <i>CV</i> is the coefficient of variation: 0 when all workers did the same, the higher the less even. <i>p99</i> is the time
within which 99 of 100 requests were answered. Policies without a program's name are weir's.</p>
";
