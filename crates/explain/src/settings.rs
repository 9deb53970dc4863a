//! Finds the directives in force at the block that a request has reached, and where they are
//! configured.

use weir_conf::{Contexts, Directive, DirectiveBody, Pos, known};

/// Nested blocks, from the outermost to the innermost.
pub(crate) type Chain<'a> = Vec<&'a Directive>;

/// A directive in force.
#[derive(Debug, Clone)]
pub(crate) struct SettingInForce<'a> {
    pub line: &'a Directive,
    /// The block that contains it. `None` at the top level.
    pub from: Option<&'a Directive>,
    /// Whether it is inherited from an outer block.
    pub inherited: bool,
}

/// The nested blocks down to the block at `block`, which is or is inside the server at `server`.
pub(crate) fn chain<'a>(main: &'a [Directive], server: Pos, block: Option<Pos>) -> Chain<'a> {
    let mut blocks = Vec::new();
    let http = main.iter().filter(|d| d.name.is("http"));
    for http in http {
        blocks.push(http);
        for one in http.block().iter().filter(|d| d.name.is("server") && d.name.pos == server) {
            blocks.push(one);
            match block {
                Some(at) if at != server => {
                    if descend(one, at, &mut blocks) {
                        return blocks;
                    }
                }
                _ => return blocks,
            }
            blocks.pop();
        }
        blocks.pop();
    }
    blocks
}

fn descend<'a>(from: &'a Directive, at: Pos, blocks: &mut Chain<'a>) -> bool {
    for inner in from.block().iter().filter(|d| BLOCKS.iter().any(|name| d.name.is(name))) {
        blocks.push(inner);
        if inner.name.pos == at || descend(inner, at, blocks) {
            return true;
        }
        blocks.pop();
    }
    false
}

const BLOCKS: &[&str] = &["location", "if", "limit_except"];

/// The directives in force in the innermost block. Each is taken from the innermost block that has
/// it.
pub(crate) fn settings_in_force<'a>(
    main: &'a [Directive],
    chain: &[&'a Directive],
) -> Vec<SettingInForce<'a>> {
    let mut out: Vec<SettingInForce<'a>> = Vec::new();
    let mut seen: Vec<String> = Vec::new();
    let levels =
        chain.iter().rev().map(|block| (block.block(), Some(*block))).chain([(main, None)]);
    let is_server = chain.last().is_some_and(|block| block.name.is("server"));
    // `if` and `limit_except` blocks without a content handler use that of the block around them.
    let mut own = true;
    for (i, (lines, from)) in levels.enumerate() {
        let mut here = Vec::new();
        for line in lines.iter().filter(|line| is_setting(line, is_server)) {
            let name = list_name(&line.name.lossy());
            if seen.contains(&name) || (!own && is_not_inherited(&line.name.lossy())) {
                continue;
            }
            here.push(name);
            out.push(SettingInForce { line, from, inherited: i > 0 });
        }
        seen.extend(here);
        own &= from.is_some_and(|block| block.name.is("if") || block.name.is("limit_except"));
    }
    out
}

/// Whether a directive is a setting of a location, or of its server.
fn is_setting(line: &Directive, is_server: bool) -> bool {
    if matches!(line.body, DirectiveBody::Block(_))
        || REWRITE_DIRECTIVES.iter().any(|name| line.name.is(name))
    {
        return false;
    }
    let places = Contexts::LOCATION.or(Contexts::IF_LOCATION).or(Contexts::LIMIT_EXCEPT);
    let places = if is_server { places.or(Contexts::SERVER) } else { places };
    let mut all = known(&line.name.bytes);
    all.any(|known| known.contexts.meets(places) || known.contexts == Contexts::SERVER)
}

/// Directives of the rewrite module. They are shown as steps.
const REWRITE_DIRECTIVES: &[&str] = &["rewrite", "return", "set", "break", "if", "include"];

/// The list of a directive. Directives of one list in an inner block replace those of outer blocks.
fn list_name(name: &str) -> String {
    match name {
        "allow" | "deny" => "allow",
        "alias" => "root",
        name => name,
    }
    .to_owned()
}

/// Whether a directive is not inherited.
fn is_not_inherited(name: &str) -> bool {
    const ALONE: &[&str] = &[
        "try_files",
        "stub_status",
        "weir_status",
        "weir_dashboard",
        "empty_gif",
        "flv",
        "mp4",
        "health_check",
        "proxy_cache_purge",
        "fastcgi_cache_purge",
        "uwsgi_cache_purge",
        "scgi_cache_purge",
    ];
    let echoes = name.starts_with("echo") && name != "echo_status";
    let own_link = ["secure_link", "secure_link_md5", "secure_link_secret"].contains(&name);
    ALONE.contains(&name)
        || name.ends_with("_pass")
        || name.starts_with("content_by_lua")
        || echoes
        || own_link
}
