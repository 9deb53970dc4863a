//! `weir lint`: mistakes in an nginx.conf that `nginx -t` accepts.
//!
//! A rule examines one directive in its `Scope` and returns a problem, or nothing. `rules` lists
//! all rules. A finding is a warning of `weir_conf` with the name of the rule and a remedy, so it
//! looks like a warning of the server.
//!
//! - In: the tree of a configuration, and the certificates that it names.
//! - Out: findings, each with its rule, its place and the remedy.
//! - Callers: the binary `weir`.

mod command;
mod rules;
#[cfg(test)]
mod tests;

use std::path::Path;

use weir_conf::{BlockPath, ConfigTree, Error, walk};

pub use command::{Options, lint};

/// The finding of a rule.
struct LintFinding {
    /// The rule's name.
    rule: &'static str,
    error: Error,
}

/// All findings for a configuration, in the order of its text. `allowed` names rules to leave out.
/// Relative names of other files begin at `prefix`.
fn findings(tree: &ConfigTree, prefix: &Path, allowed: &[String]) -> Vec<LintFinding> {
    let mut out: Vec<LintFinding> = Vec::new();
    let mut add = |rule: &'static str, error: Error| {
        // A file that is included twice is reported once.
        if !out.iter().any(|known| known.rule == rule && known.error.mark == error.mark) {
            out.push(LintFinding { rule, error });
        }
    };
    let wanted = |name: &str| allowed.iter().all(|allowed| allowed != name);
    walk(&mut BlockPath::new(&tree.main), &mut |scope, directive| {
        let of_text = rules::OF_TEXT.iter().filter(|(name, _)| wanted(name));
        for (name, rule) in of_text {
            rule(scope, directive).into_iter().for_each(|error| add(name, error));
        }
        let of_files = rules::OF_FILES.iter().filter(|(name, _)| wanted(name));
        for (name, rule) in of_files {
            rule(prefix, directive).into_iter().for_each(|error| add(name, error));
        }
    });
    out
}
