//! Which fields may borrow from a site.
//!
//! A site is borrowed as `&'static` and freed when its last owner has gone (`weir_sys::lent`). A field with such a reference is sound
//! only if what has it also holds the site's owner, or is over within a turn. Each is listed here with the reason. What is not listed
//! fails the test: give it an `Arc`, or add it with a reason that holds.

use std::path::Path;

/// Part of a request's own future, which ends before its `Request`: that holds the loop's state.
const REQUEST: &str = "in the future of a request";
/// A constant of the program.
const CONSTANT: &str = "a constant";
/// Lua's virtual machine. A site with scripts is never replaced in a running worker.
const SCRIPTS: &str = "sites with scripts stay";
/// It has the owner beside it.
const OWNER: &str = "holds the state that owns the site";

/// Files of these crates' sources, the fields in them, and why these may borrow.
const MAY: &[(&str, &[&str], &str)] = &[
    ("http/src/carrier/framed.rs", &["own_texts"], REQUEST),
    ("http/src/carrier/http1.rs", &["own_texts"], REQUEST),
    ("http/src/config/mod.rs", &["modules"], CONSTANT),
    ("http/src/config/module.rs", &["directives", "list", "phases"], CONSTANT),
    ("http/src/config/module.rs", &["client_hello", "certificate"], CONSTANT),
    ("http/src/config/module.rs", &["session_fetch", "session_store"], CONSTANT),
    (
        "http/src/config/module.rs",
        &["post_read", "server_rewrite", "rewrite", "rewritten"],
        CONSTANT,
    ),
    ("http/src/config/module.rs", &["preaccess", "access", "precontent", "content"], CONSTANT),
    ("http/src/config/module.rs", &["log", "header_filters", "trailer_filters"], CONSTANT),
    ("http/src/event_loop.rs", &["site"], OWNER),
    ("http/src/event_loop.rs", &["status_zones"], "of `stream`, which stays"),
    ("http/src/http2/link.rs", &["server"], OWNER),
    ("http/src/http3/link/mod.rs", &["default"], OWNER),
    ("http/src/modules/addition_filter.rs", &["conf"], REQUEST),
    ("http/src/modules/browser.rs", &["name", "token"], CONSTANT),
    ("http/src/modules/echo.rs", &["conf"], REQUEST),
    ("http/src/modules/encoding.rs", &["coding", "name"], CONSTANT),
    ("http/src/modules/fastcgi/protocol.rs", &["conf"], REQUEST),
    ("http/src/modules/grpc/call.rs", &["conf"], REQUEST),
    ("http/src/modules/limit_req/mod.rs", &["keys", "limits"], REQUEST),
    ("http/src/modules/lua/current.rs", &["conf"], SCRIPTS),
    ("http/src/modules/lua/filters.rs", &["script"], SCRIPTS),
    ("http/src/modules/lua/session/mod.rs", &["conf"], SCRIPTS),
    ("http/src/modules/lua/vm.rs", &["known", "site"], SCRIPTS),
    ("http/src/modules/memcached.rs", &["conf", "pass"], REQUEST),
    ("http/src/modules/proxy/http.rs", &["conf", "pass"], REQUEST),
    ("http/src/modules/rewrite/run.rs", &["conf"], REQUEST),
    ("http/src/modules/ssi_filter/commands.rs", &["conf"], REQUEST),
    ("http/src/modules/ssi_filter/commands.rs", &["params"], CONSTANT),
    ("http/src/modules/sub_filter.rs", &["to"], REQUEST),
    ("http/src/modules/uwsgi.rs", &["conf"], REQUEST),
    ("http/src/request/contexts.rs", &["key"], CONSTANT),
    ("http/src/request/mod.rs", &["chosen_content", "location", "main_location"], OWNER),
    ("http/src/request/mod.rs", &["server", "site"], OWNER),
    ("http/src/site/content.rs", &["handler", "run"], CONSTANT),
    ("http/src/upstream/cgi/plain.rs", &["passing"], REQUEST),
    ("http/src/upstream/driver/mod.rs", &["limits", "passing", "sticky", "upstream"], REQUEST),
    ("http/src/upstream/source.rs", &["passing"], REQUEST),
    ("ssl/src/client/mod.rs", &["settings"], REQUEST),
    ("upstream/src/counts.rs", &["table"], CONSTANT),
    ("values/src/doing.rs", &["block"], "forgotten at the end of the turn in which a site goes"),
    ("values/src/limit_conn.rs", &["zone"], REQUEST),
];

/// Crates with references into a site.
const CRATES: [&str; 4] = ["http", "ssl", "upstream", "values"];

#[test]
fn what_borrows_from_a_site_is_known_and_holds_its_owner() {
    let crates = super::root().join("crates");
    let mut found = Vec::new();
    for name in CRATES {
        fields_below(&crates, &crates.join(name).join("src"), &mut found);
    }
    found.sort();
    found.dedup();
    let listed = |(file, field): &(String, String)| {
        MAY.iter().any(|(known, fields, _)| known == file && fields.contains(&field.as_str()))
    };
    let unknown: Vec<_> = found.iter().filter(|place| !listed(place)).collect();
    assert!(unknown.is_empty(), "what holds the site while these borrow from it? {unknown:#?}");
    let gone =
        MAY.iter().flat_map(|(file, fields, _)| fields.iter().map(move |field| (file, field)));
    let is_gone =
        |(file, field): &(&&str, &&str)| !found.iter().any(|(f, n)| f == *file && n == *field);
    let gone: Vec<_> = gone.filter(is_gone).collect();
    assert!(gone.is_empty(), "these borrow no more: {gone:#?}");
}

fn fields_below(crates: &Path, folder: &Path, found: &mut Vec<(String, String)>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            fields_below(crates, &path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let name = path.strip_prefix(crates).unwrap().display().to_string();
            let text = std::fs::read_to_string(&path).unwrap();
            found.extend(fields(&text).into_iter().map(|field| (name.clone(), field)));
        }
    }
}

/// Fields of structs that have a reference for ever in their type, except to text.
fn fields(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut inside = false;
    for line in text.lines() {
        let indented = line.starts_with("    ") && !line.starts_with("     ");
        match line.trim_end() {
            opened if !line.starts_with(' ') && opened.contains("struct ") => {
                inside = opened.ends_with('{');
            }
            "}" => inside = false,
            _ => {}
        }
        let borrows = line.replace("&'static str", "").contains("&'static ");
        if inside && indented && borrows && !line.trim_start().starts_with("//") {
            let name = line.split(':').next().unwrap_or_default();
            found.extend(name.split_whitespace().last().map(str::to_owned));
        }
    }
    found
}

#[test]
fn fields_that_borrow_are_found() {
    let text = "pub struct A<'a> {\n    /// &'static B\n    pub(crate) b: Option<&'static B>,\n    c: &'a C,\n    d: &'static str,\n}\nfn f(\n    e: &'static E,\n) {\n}";
    assert_eq!(fields(text), ["b"]);
}
