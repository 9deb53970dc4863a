//! `weir lint`: mistakes in an nginx.conf that `nginx -t` accepts.
//!
//! A rule looks at one directive in its `Scope` and returns what is wrong, or nothing; `rules` lists them. A finding is a
//! warning of `weir_conf`, with the rule's name before it and the remedy behind it. So it looks like a warning of the server.
//!
//! - In: the tree of a configuration.
//! - Out: findings, each with its rule, its place and the remedy.
//! - Callers: the binary `weir`.

mod command;
mod rules;
#[cfg(test)]
mod tests;

use weir_conf::{BlockPath, ConfigTree, Error, walk};

pub use command::{Options, lint};

/// What was found.
struct LintFinding {
    /// The rule's name.
    rule: &'static str,
    error: Error,
}

/// All findings of a configuration, in the order of its text; rules of these names are left out.
fn findings(tree: &ConfigTree, allowed: &[String]) -> Vec<LintFinding> {
    let mut out = Vec::new();
    walk(&mut BlockPath::new(&tree.main), &mut |scope, directive| {
        for (name, rule) in rules::ALL.iter().filter(|(name, _)| allowed.iter().all(|a| a != name))
        {
            // A file that is included twice is told of once.
            let told = |error: &Error| {
                out.iter().any(|f: &LintFinding| f.rule == *name && f.error.mark == error.mark)
            };
            if let Some(error) = rule(scope, directive).filter(|error| !told(error)) {
                out.push(LintFinding { rule: name, error });
            }
        }
    });
    out
}
