//! Snippets: directives of an Ingress's owner, as far as the administrator allows them.

use std::path::Path;

use weir_conf::{ConfigTree, Directive, read_fragment};

use super::lines::line;
use super::sources::Source;
use super::work::Work;
use crate::annotations::values;
use crate::report::Severity;

/// The longest snippet.
const LONGEST: usize = 64 << 10;

/// The context of a snippet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Server,
    Location,
}

impl Work<'_> {
    /// The directives of a snippet. Empty if one of them is not allowed, which a finding reports.
    pub(super) fn snippet(
        &mut self,
        source: &Source,
        annotation: &'static str,
        text: Option<&String>,
        place: Place,
    ) -> Vec<Directive> {
        let Some(text) = text else { return Vec::new() };
        match read(text, annotation, place, &self.settings.snippet_directives) {
            Ok(list) => list,
            Err(why) => {
                let message = format!("{why}; the snippet is left out");
                self.say(&source.id, Severity::Error, "InvalidSnippet", annotation, &message);
                Vec::new()
            }
        }
    }
}

/// Reads a snippet. An error shows the line with a caret.
fn read(
    text: &str,
    name: &str,
    place: Place,
    allowed: &std::collections::BTreeSet<String>,
) -> Result<Vec<Directive>, String> {
    if allowed.is_empty() {
        return Err("the administrator allows no snippet (--allow-snippet-directive)".to_owned());
    }
    if text.len() > LONGEST {
        return Err(format!("it has more than {LONGEST} bytes"));
    }
    let tree = read_fragment(Path::new(name), text.as_bytes());
    if let Some(error) = &tree.broken {
        return Err(tree.sources.explain(error));
    }
    if let Some((directive, why)) = forbidden(&tree.main, allowed) {
        return Err(tree.sources.explain(&directive.error(why)));
    }
    // Checks contexts and arguments, as if the snippet were in its place.
    let inner = match place {
        Place::Server => tree.main.clone(),
        Place::Location => vec![line("location", ["/"]).with_block(tree.main.clone())],
    };
    let server = line("server", []).with_block(inner);
    let whole = ConfigTree {
        sources: tree.sources.clone(),
        main: vec![
            line("events", []).with_block(Vec::new()),
            line("http", []).with_block(vec![server]),
        ],
        broken: None,
    };
    match weir_conf::check(&whole, &|_, _| true) {
        Ok(_) => Ok(tree.main),
        Err(error) => Err(whole.sources.explain(&error)),
    }
}

/// The first directive that is not allowed.
fn forbidden<'d>(
    list: &'d [Directive],
    allowed: &std::collections::BTreeSet<String>,
) -> Option<(&'d Directive, String)> {
    list.iter().find_map(|directive| {
        let name = directive.name.lossy();
        if !allowed.contains(&*name) {
            let why =
                format!("\"{name}\" directive is not among those that the administrator allows");
            return Some((directive, why));
        }
        let long = |word: &weir_conf::Word| word.bytes.len() > 4 * values::LONGEST - 2;
        if directive.args.iter().any(long) {
            return Some((directive, format!("\"{name}\" directive has a word that is too long")));
        }
        match &*name {
            // The lines of its block are no directives.
            "types" => None,
            _ => forbidden(directive.block(), allowed),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn try_read(text: &str, place: Place) -> Result<usize, String> {
        let allowed = ["add_header", "if", "return", "location", "set", "include", "listen"];
        let allowed = allowed.into_iter().map(str::to_owned).collect();
        read(text, "configuration-snippet", place, &allowed).map(|list| list.len())
    }

    #[test]
    fn only_allowed_directives_in_their_places_are_taken() {
        assert_eq!(try_read("add_header A b; if ($arg_x) { return 403; }", Place::Location), Ok(2));
        assert_eq!(try_read("location /x { add_header A b; }", Place::Server), Ok(1));
        for (text, what) in [
            ("proxy_pass http://127.0.0.1;", "not among those"),
            ("if ($arg_x) { proxy_pass http://a; }", "not among those"),
            ("include /etc/passwd;", "\"include\" directive is not allowed here"),
            ("\"incl\\ude\" /etc/passwd;", "not among those"),
            ("listen 80;", "not allowed here"),
            ("add_header;", "invalid number of arguments"),
            ("} } server { return 200;", "unexpected \"}\""),
            ("return 200", "unexpected end of file"),
        ] {
            let why = try_read(text, Place::Location).unwrap_err();
            assert!(why.contains(what), "{text}: {why}");
        }
        let why = try_read("set $a b;\nproxy_pass http://x;", Place::Location).unwrap_err();
        assert!(why.contains("configuration-snippet:2") && why.contains("^"), "{why}");
        let none = std::collections::BTreeSet::new();
        assert!(read("set $a b;", "server-snippet", Place::Server, &none).is_err());
    }
}
