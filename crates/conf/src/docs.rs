//! The text of docs/directives.md, from the tables.

use std::collections::HashMap;
use std::fmt::Write;

use crate::context::Contexts;
use crate::known::{Args, ArgumentKind, Effect, KnownDirective, all_known};

/// Lists the directives of each module by context: name, arguments, help. The modules that weir
/// does not have come last.
///
/// Directives with the same arguments and help share an item. One that repeats a directive of an
/// earlier module is only named, as in "As with `proxy_` in place of `uwsgi_`". If an earlier
/// directive has the same help, the item refers to that one.
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
         The tables of `crates/conf` generate the page; do not edit it. Brackets hold a directive's arguments or their \
         number: `(2+)` is two or more. Without brackets it takes one. {done} of {total} known directives are built. {inert} of these are accepted \
         without effect, since weir needs none of what they tune; their help begins with \"Accepted\". weir refuses a \
         directive that is not built where ignoring it would change who gets in or what clients get. It warns of one \
         that only tunes.\n"
    );
    let mut absent = String::new();
    let mut seen: HashMap<&str, Vec<&KnownDirective>> = HashMap::new();
    let all: Vec<&KnownDirective> = all_known().collect();
    for of_module in all.chunk_by(|a, b| a.module == b.module) {
        let module = of_module[0].module;
        let (here, missing): (Vec<&KnownDirective>, Vec<&KnownDirective>) =
            of_module.iter().partition(|known| is_built(known, built));
        if here.is_empty() {
            list_missing(&mut absent, &missing, |effect| format!("- {module}, {effect}:"));
            continue;
        }
        // Writing to a String cannot fail.
        let _ = writeln!(page, "\n## {module}");
        for contexts in distinct(here.iter().map(|known| known.contexts)) {
            let together = here.iter().filter(|known| known.contexts == contexts).map(|known| {
                let text = help(known).unwrap_or_default();
                let earlier = seen.entry(text).or_default();
                let entry = entry(known, text, earlier, part(known, built));
                earlier.push(known);
                (entry, known.name)
            });
            let mut groups: Vec<(Entry, Vec<&str>)> = Vec::new();
            for (entry, name) in together {
                push(&mut groups, entry, name);
            }
            groups.sort_by_key(|(entry, _)| matches!(entry, Entry::Reference(_)));
            let _ = write!(page, "\nIn {contexts}:\n\n");
            for (entry, names) in groups {
                list(&mut page, &entry, &names);
            }
        }
        list_missing(&mut page, &missing, |effect| format!("\nNot built, {effect}:"));
    }
    let _ = write!(page, "\n## Modules that weir does not have\n\n{absent}");
    page
}

/// The entry of a directive on the page.
#[derive(PartialEq)]
enum Entry {
    /// Its arguments and its help.
    Described(String),
    /// A reference to an entry that is the same. Only the directive's name follows.
    Reference(String),
}

/// The fewest words of a help that are replaced by a reference. A reference to a shorter one would
/// save nothing.
const LONG: usize = 6;

/// The longest line of names, in bytes.
const WIDTH: usize = 150;

/// The entry of a directive with this help. The directives `earlier` have the same help.
fn entry(known: &KnownDirective, text: &str, earlier: &[&KnownDirective], part: String) -> Entry {
    let twins = earlier.iter().filter(|e| e.args == known.args && !text.is_empty());
    for twin in twins.filter(|twin| part.is_empty() && twin.module != known.module) {
        if twin.name == known.name {
            return Entry::Reference(format!("As in {}:", twin.module));
        }
        let ends = (twin.name.split_once('_'), known.name.split_once('_'));
        if let (Some((theirs, rest)), Some((own, end))) = ends
            && rest == end
            && twin.contexts == known.contexts
        {
            return Entry::Reference(format!("As with `{theirs}_` in place of `{own}_`:"));
        }
    }
    let text = match earlier.first() {
        Some(first) if text.split(' ').count() >= LONG && first.name != known.name => {
            let is_same = first.module == known.module
                && first.args == known.args
                && first.contexts == known.contexts;
            if is_same { text.to_owned() } else { format!("As `{}`.", first.name) }
        }
        _ => text.to_owned(),
    };
    let colon = if text.is_empty() { "" } else { ": " };
    Entry::Described(format!("{}{colon}{part}{text}", takes(known.args)))
}

/// The arguments in brackets, or their number; one argument of any kind is the usual case.
fn takes(args: Args) -> String {
    match (args.value, args.min, args.max) {
        (ArgumentKind::Flag, ..) => " (on|off)".to_owned(),
        (ArgumentKind::Any, 1, 1) => String::new(),
        (ArgumentKind::Any, min, u8::MAX) => format!(" ({min}+)"),
        (ArgumentKind::Any, min, max) if min < max => format!(" ({min}-{max})"),
        _ => format!(" ({args})"),
    }
}

/// Appends the item of the directives with one entry.
fn list(page: &mut String, entry: &Entry, names: &[&str]) {
    match entry {
        Entry::Described(text) => {
            let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
            let _ = writeln!(page, "- {}{text}", names.join(", "));
        }
        Entry::Reference(text) => list_names(page, format!("- {text}"), names),
    }
}

/// Adds a name to the group of its key.
fn push<K: PartialEq>(groups: &mut Vec<(K, Vec<&'static str>)>, key: K, name: &'static str) {
    match groups.iter_mut().find(|(there, _)| *there == key) {
        Some((_, names)) => names.push(name),
        None => groups.push((key, vec![name])),
    }
}

/// Each value once, in the order of their first occurrence.
fn distinct(values: impl Iterator<Item = Contexts>) -> Vec<Contexts> {
    let mut out = Vec::new();
    for value in values {
        if !out.contains(&value) {
            out.push(value);
        }
    }
    out
}

/// Directives that are not built, by what weir does about them.
fn list_missing(page: &mut String, missing: &[&KnownDirective], head: impl Fn(&str) -> String) {
    let mut groups: Vec<(String, Vec<&str>)> = Vec::new();
    for known in missing {
        let effect = match known.effect {
            Effect::Emerg => "refused".to_owned(),
            Effect::EmergUnless(value) => format!("refused except `{value}`"),
            Effect::Warn => "warned of".to_owned(),
        };
        push(&mut groups, effect, known.name);
    }
    for (effect, names) in groups {
        list_names(page, head(&effect), &names);
    }
}

/// Appends an item with names, in lines that are not too long.
fn list_names(page: &mut String, mut line: String, names: &[&str]) {
    for (n, name) in names.iter().enumerate() {
        let end = if n + 1 == names.len() { "." } else { "," };
        let word = format!("`{name}`{end}");
        if line.len() + word.len() > WIDTH {
            page.push_str(&line);
            page.push('\n');
            line = " ".to_owned();
        }
        line.push(' ');
        line.push_str(&word);
    }
    page.push_str(&line);
    page.push('\n');
}

fn is_built(known: &KnownDirective, built: &dyn Fn(&KnownDirective, Contexts) -> bool) -> bool {
    known.contexts.each().any(|context| built(known, context))
}

/// Whether a directive has no effect. Its help says so first; its values are checked.
fn is_inert(help: Option<&str>) -> bool {
    help.is_some_and(|help| help.starts_with("Accepted"))
}

/// A note on a directive that is built in some of its contexts only.
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
            "- `root`: Built in server only. where files are\n",
            "In server:\n\n- `listen` (1+)\n",
            "\nNot built, refused except `off`: `gzip`",
            "- ngx_http_access_module, refused: `allow`, `deny`.",
            "(on|off): Accepted: so it is anyway.\n",
            "(1+): a text of seven words in all\n",
            "(1+): As `index`.\n",
        ] {
            assert!(page.contains(row), "{row}: {page}");
        }
        assert_eq!(page.matches("\n## ngx_http_core_module\n").count(), 1);
        assert!(page.lines().all(|line| line.len() <= 600));
    }
}
