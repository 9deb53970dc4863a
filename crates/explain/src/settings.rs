//! What is in force where a request has arrived, and where that was written.

use weir_conf::{Contexts, Directive, DirectiveBody, Pos, known};

/// The blocks around a place, from the outermost to the innermost.
pub(crate) type Chain<'a> = Vec<&'a Directive>;

/// A directive that is in force.
#[derive(Debug, Clone)]
pub(crate) struct SettingInForce<'a> {
    pub line: &'a Directive,
    /// The block that it stands in; none is outside of all.
    pub from: Option<&'a Directive>,
    /// It stands in a block around the innermost one.
    pub inherited: bool,
}

/// The way to the block at `block` that lies in, or is, the server at `server`.
pub(crate) fn chain<'a>(main: &'a [Directive], server: Pos, block: Option<Pos>) -> Chain<'a> {
    let mut way = Vec::new();
    let http = main.iter().filter(|d| d.name.is("http"));
    for http in http {
        way.push(http);
        for one in http.block().iter().filter(|d| d.name.is("server") && d.name.pos == server) {
            way.push(one);
            match block {
                Some(at) if at != server => {
                    if descend(one, at, &mut way) {
                        return way;
                    }
                }
                _ => return way,
            }
            way.pop();
        }
        way.pop();
    }
    way
}

fn descend<'a>(from: &'a Directive, at: Pos, way: &mut Chain<'a>) -> bool {
    for inner in from.block().iter().filter(|d| BLOCKS.iter().any(|name| d.name.is(name))) {
        way.push(inner);
        if inner.name.pos == at || descend(inner, at, way) {
            return true;
        }
        way.pop();
    }
    false
}

const BLOCKS: &[&str] = &["location", "if", "limit_except"];

/// All that is in force in the innermost block: of each directive the lines of the innermost block that has any.
pub(crate) fn held<'a>(main: &'a [Directive], chain: &[&'a Directive]) -> Vec<SettingInForce<'a>> {
    let mut out: Vec<SettingInForce<'a>> = Vec::new();
    let mut seen: Vec<String> = Vec::new();
    let levels =
        chain.iter().rev().map(|block| (block.block(), Some(*block))).chain([(main, None)]);
    let is_server = chain.last().is_some_and(|block| block.name.is("server"));
    // Blocks that only change settings leave the content handler as it was.
    let mut own = true;
    for (i, (lines, from)) in levels.enumerate() {
        let mut here = Vec::new();
        for line in lines.iter().filter(|line| is_setting(line, is_server)) {
            let name = list_of(&line.name.lossy());
            if seen.contains(&name) || (!own && is_of_its_block(&line.name.lossy())) {
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

/// Whether a line says something about requests in a location, or in its server.
fn is_setting(line: &Directive, is_server: bool) -> bool {
    if matches!(line.body, DirectiveBody::Block(_)) || CODE.iter().any(|name| line.name.is(name)) {
        return false;
    }
    let places = Contexts::LOCATION.or(Contexts::IF_LOCATION).or(Contexts::LIMIT_EXCEPT);
    let places = if is_server { places.or(Contexts::SERVER) } else { places };
    let mut all = known(&line.name.bytes);
    all.any(|known| known.contexts.meets(places) || known.contexts == Contexts::SERVER)
}

/// What the code of `rewrite` does is told as it happens.
const CODE: &[&str] = &["rewrite", "return", "set", "break", "if", "include"];

/// Directives of one list replace each other.
fn list_of(name: &str) -> String {
    match name {
        "allow" | "deny" => "allow",
        "alias" => "root",
        name => name,
    }
    .to_owned()
}

/// Directives that hold in the block that they stand in alone.
fn is_of_its_block(name: &str) -> bool {
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
