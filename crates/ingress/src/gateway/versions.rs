//! The versions of Gateway API whose definitions are known.

use std::collections::BTreeSet;

use super::status::Condition;

/// The newest known minor version of v1.
const NEWEST: u32 = 7;

/// The condition of a class about the cluster's definitions; none if they are unknown. Objects are
/// served all the same, as far as weir knows their fields.
pub(super) fn condition(bundles: &BTreeSet<String>) -> Option<Condition> {
    let others: Vec<&str> =
        bundles.iter().map(String::as_str).filter(|version| !is_known(version)).collect();
    if bundles.is_empty() {
        return None;
    }
    if others.is_empty() {
        return Some(Condition::yes("SupportedVersion", "SupportedVersion"));
    }
    let named = |version: &&str| if version.is_empty() { "none" } else { *version }.to_owned();
    let found: Vec<String> = others.iter().map(named).collect();
    let found = found.join(", ");
    let text = format!("definitions of {found} are there; v1.0 to v1.{NEWEST} are known");
    Some(Condition::no("SupportedVersion", "UnsupportedVersion", text))
}

/// Whether a version such as `v1.6.3` is known.
fn is_known(version: &str) -> bool {
    let minor = version.strip_prefix("v1.").and_then(|rest| rest.split('.').next());
    minor.and_then(|minor| minor.parse().ok()).is_some_and(|minor: u32| minor <= NEWEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_says_whether_the_definitions_are_known() {
        let told = |versions: &[&str]| {
            let versions = versions.iter().map(|version| (*version).to_owned()).collect();
            condition(&versions).map(|one| (one.holds, one.reason, one.message))
        };
        assert_eq!(told(&[]), None);
        for known in ["v1.0.0", "v1.6.3", "v1.7.0-rc.1"] {
            let wanted = (true, "SupportedVersion", String::new());
            assert_eq!(told(&[known]), Some(wanted), "{known}");
        }
        for (list, named) in [
            (&["v1.8.0"][..], "v1.8.0"),
            (&["", "v1.6.3"], "none"),
            (&["v2.1.0", "x"], "v2.1.0, x"),
        ] {
            let (holds, reason, message) = told(list).unwrap();
            assert_eq!((holds, reason), (false, "UnsupportedVersion"), "{list:?}");
            assert!(message.starts_with(&format!("definitions of {named} are there")), "{message}");
        }
    }
}
