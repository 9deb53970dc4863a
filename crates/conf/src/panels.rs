//! Panels, status pages and APIs that any client can reach.

use crate::block_path::{BlockPath, walk_where};
use crate::error::Error;
use crate::tree::{ConfigTree, Directive, Word};

fn text(word: Option<&Word>) -> &str {
    word.and_then(Word::str).unwrap_or_default()
}

/// Directives that show or change the inside of a server.
const PANELS: [&str; 5] =
    ["weir_dashboard", "weir_status", "weir_api", "stub_status", "vhost_traffic_status_display"];

/// Whether connections to this `listen` come from this machine alone.
fn is_local(listen: &Directive) -> bool {
    let to = text(listen.arg(0));
    ["127.", "[::1]", "localhost", "unix:"].iter().any(|begin| to.starts_with(begin))
}

/// Whether clients are restricted or must authenticate here.
fn is_guarded(scope: &BlockPath<'_>) -> bool {
    let says = |name: &str| {
        let first = |d: &&Directive| !matches!(text(d.arg(0)), "" | "off" | "optional_no_ca");
        scope.holding(name).iter().any(first)
    };
    let asks =
        ["auth_basic", "auth_request", "auth_jwt", "ssl_verify_client", "access_by_lua_file"];
    let denies = scope.outwards().any(|list| list.iter().any(|d| d.name.is("deny")));
    let internal = scope.inner().iter().any(|d| d.name.is("internal"));
    let script = !scope.holding("access_by_lua_block").is_empty();
    denies || internal || script || asks.iter().any(|name| says(name))
}

/// A warning about a panel, status page or API that clients reach over the network without
/// authentication.
pub fn open_panel<'a>(scope: &BlockPath<'a>, d: &'a Directive) -> Option<Error> {
    PANELS.iter().any(|name| d.name.is(name)).then_some(())?;
    let server = scope.around("server")?;
    let has_token = d.args.iter().any(|word| text(Some(word)).starts_with("token="));
    let is_off = text(d.arg(0)) == "off";
    let listens: Vec<_> = server.block().iter().filter(|d| d.name.is("listen")).collect();
    let is_local = !listens.is_empty() && listens.iter().all(|listen| is_local(listen));
    (!is_off && !has_token && !is_local && !is_guarded(scope)).then_some(())?;
    let what = match d.name.is("weir_api") {
        true => "any client that reaches this port may change the server",
        false => "any client that reaches this port sees the inside of the server",
    };
    let remedy = "add: allow 127.0.0.1; deny all; (or a password, or listen on 127.0.0.1)";
    Some(Error::warn(what).at(d.end).mark(d.name.pos).hint(remedy))
}

/// Such warnings for weir's own directives, for `-t`. weir does not warn of what nginx accepts in
/// silence.
pub fn open_panels(tree: &ConfigTree) -> Vec<Error> {
    let mut all = Vec::new();
    walk_where(&mut BlockPath::new(&tree.main), &|inside| inside.own, &mut |scope, d| {
        let own = d.name.str().is_some_and(|name| name.starts_with("weir_"));
        all.extend(open_panel(scope, d).filter(|_| own));
    });
    all
}
