//! A headless browser: Debian's Chromium, if it is installed.

use std::path::Path;
use std::process::Command;

use crate::process::run;

/// Timeout of the browser in seconds, long enough for a busy machine.
const BROWSER_TIME: &str = "120";
const FLAGS: &[&str] = &[
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--no-proxy-server",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--ignore-certificate-errors",
    "--dump-dom",
];

/// The text of a page after it was loaded with all its resources. `None` if there is no browser.
/// The browser's state goes to `profile`.
pub fn dump_page(profile: &Path, url: &str) -> Option<String> {
    if Command::new("chromium").arg("--version").output().is_err() {
        eprintln!("skipped: chromium is not installed");
        return None;
    }
    let profile = format!("--user-data-dir={}", profile.display());
    let before = ["-k", "5", BROWSER_TIME, "chromium"];
    let args = before.iter().chain(FLAGS).copied().chain([profile.as_str(), url]);
    let output = run("timeout", args);
    let page = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(!page.is_empty(), "no page:\n{}", String::from_utf8_lossy(&output.stderr));
    Some(page)
}
