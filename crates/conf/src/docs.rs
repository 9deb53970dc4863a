//! The text of docs/directives.md, from the tables.

use std::collections::HashMap;
use std::fmt::Write;

use crate::context::Contexts;
use crate::known::{Effect, KnownDirective, all_known};

/// One table per module: directive, contexts, arguments, help; then the directives that are not built.
///
/// Most directives of a module stand in the same contexts, which are given once. A help that an earlier
/// directive has is a reference to that one.
///
/// `built` is the predicate of [`crate::check`]; `help` gives one line about a directive.
pub fn directives_page(
    built: &dyn Fn(&KnownDirective, Contexts) -> bool,
    help: &dyn Fn(&KnownDirective) -> Option<&'static str>,
) -> String {
    let total = all_known().count();
    let done = all_known().filter(|k| is_built(k, built)).count();
    let inert = all_known().filter(|k| is_built(k, built) && is_inert(help(k))).count();
    let mut page = format!(
        "# Directives\n\nThis page is for those who look a directive up: where it may stand, what it takes, and whether \
         weir has it. For example, `accept_balance` stands in `events`, and `weir -t` refuses it elsewhere.\n\n\
         The tables of `crates/conf` generate the page; do not edit it. {done} of {total} known directives are built. \
         {inert} of these are accepted without effect, since weir needs none of what they tune; their help begins with \
         \"Accepted\". The lists below the tables name the others: weir refuses a directive where ignoring it would \
         change who gets in or what clients get, and warns of one that only tunes.\n"
    );
    let all: Vec<&KnownDirective> = all_known().collect();
    let mut first: HashMap<&str, &str> = HashMap::new();
    for of_module in all.chunk_by(|a, b| a.module == b.module) {
        let (here, missing): (Vec<&KnownDirective>, Vec<&KnownDirective>) =
            of_module.iter().partition(|known| is_built(known, built));
        // Writing to a String cannot fail.
        let _ = writeln!(page, "\n## {}", of_module[0].module);
        let usual = usual(&here);
        if let Some(usual) = usual {
            let _ = write!(page, "\nContexts, where a row names none: {usual}.\n");
        }
        if !here.is_empty() {
            page.push('\n');
            page.push_str(HEAD);
        }
        for known in here {
            let contexts = match usual {
                Some(usual) if usual == known.contexts => String::new(),
                _ => known.contexts.to_string(),
            };
            let text = help(known).unwrap_or_default();
            let earlier = *first.entry(text).or_insert(known.name);
            let text = match text.split(' ').count() >= LONG && earlier != known.name {
                true => format!("As `{earlier}`."),
                false => text.to_owned(),
            };
            let part = part(known, built);
            let _ =
                writeln!(page, "| `{}` | {contexts} | {} | {part}{text} |", known.name, known.args);
        }
        list_missing(&mut page, &missing);
    }
    page
}

const HEAD: &str = "| directive | contexts | arguments | help |\n|---|---|---|---|\n";

/// A shorter help stands again at each directive: a reference to another one would be no shorter.
const LONG: usize = 6;

/// Characters of a line of missing directives.
const WIDTH: usize = 150;

/// The contexts that at least two rows have, and more rows than any other.
fn usual(known: &[&KnownDirective]) -> Option<Contexts> {
    let count = |contexts: Contexts| known.iter().filter(|k| k.contexts == contexts).count();
    let most = known.iter().map(|k| k.contexts).max_by_key(|contexts| count(*contexts))?;
    (count(most) > 1).then_some(most)
}

/// Directives that are not built, by what weir does about them.
fn list_missing(page: &mut String, missing: &[&KnownDirective]) {
    let mut groups: Vec<(String, Vec<&str>)> = Vec::new();
    for known in missing {
        let effect = match known.effect {
            Effect::Emerg => "Not built, refused".to_owned(),
            Effect::EmergUnless(value) => format!("Not built, refused except `{value}`"),
            Effect::Warn => "Not built, warned of".to_owned(),
        };
        match groups.iter_mut().find(|(there, _)| *there == effect) {
            Some((_, names)) => names.push(known.name),
            None => groups.push((effect, vec![known.name])),
        }
    }
    for (effect, names) in groups {
        let mut line = format!("\n{effect}:");
        for (n, name) in names.iter().enumerate() {
            let end = if n + 1 == names.len() { "." } else { "," };
            let word = format!("`{name}`{end}");
            let begins = if line.len() + word.len() > WIDTH { '\n' } else { ' ' };
            if begins == '\n' {
                page.push_str(&line);
                line.clear();
            }
            line.push(begins);
            line.push_str(&word);
        }
        page.push_str(&line);
        page.push('\n');
    }
}

fn is_built(known: &KnownDirective, built: &dyn Fn(&KnownDirective, Contexts) -> bool) -> bool {
    known.contexts.each().any(|context| built(known, context))
}

/// Its values are judged, and that is all: the help says so first.
fn is_inert(help: Option<&str>) -> bool {
    help.is_some_and(|help| help.starts_with("Accepted"))
}

/// Says so where a directive is built in some of its contexts only.
fn part(known: &KnownDirective, built: &dyn Fn(&KnownDirective, Contexts) -> bool) -> String {
    let places: Vec<Contexts> = known.contexts.each().filter(|c| built(known, *c)).collect();
    if places.len() == known.contexts.each().count() {
        return String::new();
    }
    let set = places.into_iter().fold(Contexts::NONE, Contexts::or);
    format!("Built in {set} only. ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_says_what_is_built() {
        let built = |k: &KnownDirective, c: Contexts| match k.name {
            "listen" | "tcp_nopush" | "gzip_types" | "index" => true,
            "root" => c == Contexts::SERVER,
            _ => false,
        };
        let help = |k: &KnownDirective| match k.name {
            "root" => Some("where files are"),
            "tcp_nopush" => Some("Accepted: so it is anyway."),
            "index" | "gzip_types" => Some("a text of seven words in all"),
            _ => None,
        };
        let page = directives_page(&built, &help);
        for row in [
            "| `root` | http, server, location, if in location | 1 | Built in server only. \
             where files are |",
            "| `listen` | server | 1 or more |  |",
            "Not built, refused except `off`: `gzip`",
            "Not built, refused: `allow`, `deny`.",
            "on or off | Accepted: so it is anyway. |",
            "a text of seven words in all |",
            "| As `index`. |",
        ] {
            assert!(page.contains(row), "{row}: {page}");
        }
        assert_eq!(page.matches("\n## ngx_http_core_module\n").count(), 1);
        assert!(page.lines().all(|line| line.len() <= 600));
    }
}
