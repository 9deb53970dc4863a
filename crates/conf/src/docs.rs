//! The text of docs/directives.md, from the tables.

use std::fmt::Write;

use crate::context::Context;
use crate::known::{Effect, Known, all_known};

/// One table per module: directive, contexts, arguments, state, help.
///
/// `built` is the predicate of [`crate::check`]; `help` gives one line about a directive.
pub fn directives_page(
    built: &dyn Fn(&Known, Context) -> bool,
    help: &dyn Fn(&Known) -> Option<&'static str>,
) -> String {
    let total = all_known().count();
    let done = all_known().filter(|k| is_built(k, built)).count();
    let inert = all_known().filter(|k| is_built(k, built) && is_inert(help(k))).count();
    let mut page = format!(
        "# Directives\n\nThis page is generated from the tables of `crates/conf`; do not edit it.\n\
         {done} of {total} known directives are built; {inert} of these are accepted without \
         effect, since weir needs none of what they tune.\nOf the others some are refused, because \
         to ignore them would change who gets in or what clients get, and some only warn, because \
         they tune.\n"
    );
    let mut module = "";
    for known in all_known() {
        if known.module != module {
            module = known.module;
            // Writing to a String cannot fail.
            let _ = write!(page, "\n## {module}\n\n{HEAD}");
        }
        let _ = writeln!(
            page,
            "| `{}` | {} | {} | {} | {} |",
            known.name,
            known.contexts,
            known.args,
            state(known, built, help(known)),
            help(known).unwrap_or_default()
        );
    }
    page
}

const HEAD: &str = "| directive | contexts | arguments | state | help |\n|---|---|---|---|---|\n";

fn is_built(known: &Known, built: &dyn Fn(&Known, Context) -> bool) -> bool {
    known.contexts.each().any(|context| built(known, context))
}

/// Its values are judged, and that is all: the help says so first.
fn is_inert(help: Option<&str>) -> bool {
    help.is_some_and(|help| help.starts_with("Accepted"))
}

fn state(known: &Known, built: &dyn Fn(&Known, Context) -> bool, help: Option<&str>) -> String {
    let places: Vec<Context> = known.contexts.each().filter(|c| built(known, *c)).collect();
    if is_inert(help) && !places.is_empty() {
        return "accepted without effect".to_owned();
    }
    if places.len() == known.contexts.each().count() {
        return "built".to_owned();
    }
    if !places.is_empty() {
        let set = places.into_iter().fold(Context::NONE, Context::or);
        return format!("built in {set}");
    }
    match known.effect {
        Effect::Emerg => "not yet: refuses".to_owned(),
        Effect::EmergUnless(value) => format!("not yet: refuses, except `{value}`"),
        Effect::Warn => "not yet: warns".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_says_what_is_built() {
        let built = |k: &Known, c: Context| match k.name {
            "listen" | "tcp_nopush" => true,
            "root" => c == Context::SERVER,
            _ => false,
        };
        let help = |k: &Known| match k.name {
            "root" => Some("where files are"),
            "tcp_nopush" => Some("Accepted: so it is anyway."),
            _ => None,
        };
        let page = directives_page(&built, &help);
        for row in [
            "| `root` | http, server, location, if in location | 1 | built in server | \
             where files are |",
            "| `listen` | server | 1 or more | built |  |",
            "| `gzip` | http, server, location, if in location | on or off | \
             not yet: refuses, except `off` |  |",
            "| `deny` | http, server, location, limit_except | 1 | not yet: refuses |  |",
            "| `sendfile` | http, server, location, if in location | on or off | \
             not yet: warns |  |",
            "on or off | accepted without effect | Accepted: so it is anyway. |",
        ] {
            assert!(page.contains(row), "{row}");
        }
        assert_eq!(page.matches("\n## ngx_http_core_module\n").count(), 1);
    }
}
