//! A witness for each directive that is built: two of its values, and requests to which nginx answers differently under
//! the one and the other; weir must answer each as nginx does. What no such row can show is named in [`elsewhere`],
//! with the test that does, or with why no client can see it.
//!
//! `WEIR_WITNESS` names one directive.

mod core;
mod elsewhere;
mod more;
mod passing;

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;

use weir_conf::{Contexts, all_known};
use weir_testkit::{Oracle, Server, ask_until};

use crate::ask::{Ask, Framing, Wire};
use crate::back::Back;
use crate::{WEIR, files, look};

/// A directive, two ways to say it, where, and what is asked.
pub struct Row {
    directive: &'static str,
    /// Lines of a configuration; nothing is a way, too.
    ways: [&'static str; 2],
    /// The server around it: `{}` is where the ways go. What stands before ` || ` goes into `http`. Without `{}`, it
    /// is what a location for all paths has beside. `#N` is a word of this row and way alone.
    site: &'static str,
    /// Requests as `[tls|h2|h2s] METHOD TARGET [HTTP/1.0]`, ` && ` between them, each with fields after `|`, and a body
    /// after `|=` or, in chunks, `|~`. What ends in `*N` has N bytes more. `LOG PATH` is what an error log says,
    /// `LIST PATH` and `NAMES PATH` what a folder holds (`FILES PATH`: as soon as it holds anything), `TEXT PATH` what a file holds, all below the server's directory.
    asks: &'static str,
}

pub const fn w(
    directive: &'static str,
    ways: [&'static str; 2],
    site: &'static str,
    asks: &'static str,
) -> Row {
    Row { directive, ways, site, asks }
}

fn rows() -> impl Iterator<Item = &'static Row> {
    [core::ROWS, more::ROWS, passing::ROWS].into_iter().flatten()
}

/// Modules that are being built, with directives that have no witness yet.
const COMING: &[&str] = &["fastcgi_", "uwsgi_", "scgi_", "memcached_", "grpc_"];

/// Directives, where they are built and not merely accepted.
pub fn built() -> BTreeSet<&'static str> {
    all_known()
        .filter(|known| !COMING.iter().any(|prefix| known.name.starts_with(prefix)))
        .filter(|known| !known.module.starts_with("ngx_stream"))
        .filter(|known| known.contexts.each().any(|at| weir_server::built(known, at)))
        .filter(|known| known.contexts.each().any(|at| at != Contexts::STREAM))
        .filter(|known| !weir_server::help(known).is_some_and(|help| help.starts_with("Accepted")))
        .map(|known| known.name)
        .collect()
}

#[test]
fn every_built_directive_has_a_witness_or_a_reason() {
    let built = built();
    let shown: BTreeSet<&str> = rows().map(|row| row.directive).collect();
    let mut wrong = Vec::new();
    let mut named = BTreeSet::new();
    for (name, why) in elsewhere::all() {
        if !named.insert(name) {
            wrong.push(format!("{name} is named twice"));
        }
        if !built.contains(name) {
            wrong.push(format!("{name} is not built, but has a reason: {why}"));
        }
        if shown.contains(name) {
            wrong.push(format!("{name} has a witness, and a reason to have none: {why}"));
        }
    }
    for name in &shown {
        if !built.contains(name) {
            wrong.push(format!("{name} is not built, but has a witness"));
        }
    }
    for name in &built {
        if !shown.contains(name) && !named.contains(name) {
            wrong.push(format!("{name} has no witness, and no reason to have none"));
        }
    }
    for (name, test) in elsewhere::TESTS {
        if !elsewhere::shows(name, test) {
            wrong.push(format!("{name}: no test {test} in a file that names it"));
        }
    }
    println!("{} of {} directives have a witness here", shown.len(), built.len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn each_directive_changes_what_it_changes_with_nginx() {
    let Some(nginx) = Oracle::find() else { return };
    if nginx.is_old() {
        println!("not run: nginx {} lacks some of them", nginx.version);
        return;
    }
    let named = std::env::var("WEIR_WITNESS").ok();
    let rows: Vec<&Row> =
        rows().filter(|row| named.as_ref().is_none_or(|name| name == row.directive)).collect();
    let back = Back::start();
    let conf = conf(&rows, &back.address);
    let [theirs, ours] = [nginx.path.as_str(), WEIR].map(|program| {
        let dir = files();
        add_files(&dir);
        Server::start_in(dir, program, &conf)
    });
    let mut wrong = Vec::new();
    for (n, row) in rows.iter().enumerate() {
        let expected = [0, 1].map(|way| seen(&theirs, &back, row, n, way));
        let got = [0, 1].map(|way| seen(&ours, &back, row, n, way));
        let name = format!("{} {:?} {}", row.directive, row.ways, row.asks);
        if expected[0] == expected[1] {
            wrong.push(format!("{name} shows nothing:\n{}", expected[0]));
        }
        for way in [0, 1] {
            if expected[way] != got[way] {
                wrong.push(format!(
                    "{name}, {:?}\n-- nginx:\n{}\n-- weir:\n{}",
                    row.ways[way], expected[way], got[way]
                ));
            }
        }
    }
    wrong.iter().for_each(|wrong| println!("{wrong}\n"));
    println!("{} witnesses heard beside nginx {}", rows.len(), nginx.version);
    assert!(wrong.is_empty(), "{} of {} are wrong", wrong.len(), rows.len());
}

fn add_files(dir: &weir_testkit::Dir) {
    dir.write("one.conf", "return 200 one;");
    dir.write("two.conf", "return 200 two;");
    dir.write("others", "u:{PLAIN}other\n");
    dir.write("html/long.txt", "long ".repeat(4_000));
    dir.write("html/old.txt", "old");
    dir.write(
        "html/set.html",
        "<!--# include virtual=\"/p/b.txt\" set=\"x\" -->[<!--# echo var=\"x\" -->]",
    );
    dir.write("html/one/b.txt", "alone");
    dir.write("html/g.txt.gz", crate::packed("packed g"));
    crate::age(&dir.file("html"));
    // Workers that root starts run as the user nobody.
    std::fs::set_permissions(dir.file("html"), Permissions::from_mode(0o777))
        .expect("an own folder");
}

fn address(n: usize, way: usize) -> String {
    format!("127.8.{}.{}", n + 1, way + 1)
}

/// Both ways of all rows in one configuration, each a server with addresses of its own.
fn conf(rows: &[&Row], back: &str) -> String {
    let (mut http, mut servers) = (String::new(), String::new());
    for (n, row) in rows.iter().enumerate() {
        for (way, said) in row.ways.iter().enumerate() {
            let own = format!("w{n}x{way}");
            let (above, site) = row.site.split_once(" || ").unwrap_or(("", row.site));
            let site = match row.site.contains("{}") {
                true => site.to_owned(),
                false => format!("location / {{ {{}} {site} }}"),
            };
            let put = |text: &str| text.replace("{}", said).replace("#N", &own);
            let _ = writeln!(http, "{}", put(above));
            let at = address(n, way);
            let http2 =
                if site.contains("http2 o") || said.contains("http2 o") { "" } else { "http2 on;" };
            let log = if site.contains("access_log") || said.contains("access_log") {
                String::new()
            } else {
                format!("access_log %%DIR%%/logs/{own}.log seen;")
            };
            let _ = writeln!(
                servers,
                "server {{ listen {at}:%%PORT%%; listen {at}:%%PORT1%% ssl; listen {at}:%%PORT2%%; {http2} {log} {} }}",
                put(&site)
            );
        }
    }
    CONF.replace("SERVERS", &servers).replace("ABOVE", &http).replace("%%BACK%%", back)
}

const CONF: &str = r#"
    worker_rlimit_nofile 8192;
    events { worker_connections 2048; }
    http {
        root %%DIR%%/html; default_type text/plain; proxy_http_version 1.1;
        server_tokens off; variables_hash_max_size 8192; map_hash_bucket_size 128;
        ssl_certificate %%DIR%%/self.pem; ssl_certificate_key %%DIR%%/self.key;
        log_format seen '$request|$status|$uri|$limit_rate|$content_length|$http_x';
        log_format short '$uri'; log_format other 'other $uri';
        upstream back { server %%BACK%%; }
        ABOVE
        server {
            listen 127.7.1.1:%%PORT%%; listen 127.7.1.2:%%PORT%%; listen 127.7.1.1:%%PORT1%% ssl; server_name inner.example;
            access_log off; ssl_verify_client optional_no_ca;
            location /who { return 200 $remote_addr; }
            location / { return 200 "$server_addr $connection_requests"; }
            location /tls {
                return 200 "$ssl_protocol $ssl_cipher $ssl_server_name $ssl_session_reused $ssl_client_s_dn";
            }
        }
        SERVERS
    }
"#;

fn seen(server: &Server, back: &Back, row: &Row, n: usize, way: usize) -> String {
    drop(back.take());
    let own = format!("w{n}x{way}");
    let mut text = String::new();
    let mut asked = 0;
    for ask in row.asks.split(" && ") {
        let ask = ask.replace("#N", &own);
        text += &match ask.split_once(' ') {
            Some(("LOG", path)) => logged(server, path),
            Some(("LIST", path)) => listed(server, path),
            Some(("NAMES", path)) => named(server, path),
            Some(("FILES", path)) => {
                ask_until(|| !listed(server, path).is_empty());
                named(server, path)
            }
            Some(("TEXT", path)) => {
                ask_until(|| !server.dir().read(path).is_empty());
                server.dir().read(path)
            }
            _ => {
                asked += 1;
                look::answer_at(server, &address(n, way), &read(&ask))
            }
        };
        text += "\n";
        for heard in back.take() {
            text += &format!("-- asked:\n{heard}\n");
        }
    }
    if !row.site.contains("access_log") && !row.ways.concat().contains("access_log") {
        let read = || server.dir().read(&format!("logs/{own}.log"));
        ask_until(|| read().lines().count() >= asked);
        text += &read();
    }
    let text = look::plain(&text, server).replace(&address(n, way), "ADDRESS");
    text.replace(&back.address, "BACK").replace(&own, "OWN")
}

/// The levels of what a log says, and of which request, since words differ.
fn logged(server: &Server, path: &str) -> String {
    let mut lines = Vec::new();
    // A busy machine may hold a loop up, of which only weir tells.
    let about_loops = |line: &&str| line.contains("the event loop");
    for line in server.dir().read(path).lines().filter(|line| !about_loops(line)) {
        let level = line.split('[').nth(1).and_then(|rest| rest.split(']').next());
        let request = line.split("request: ").nth(1).and_then(|rest| rest.split(',').next());
        lines.push(format!("{level:?} {request:?}"));
    }
    lines.join("\n")
}

/// The names of a folder's files, with what may be done with them.
fn listed(server: &Server, path: &str) -> String {
    let mut names = Vec::new();
    let entries = std::fs::read_dir(server.dir().file(path)).into_iter().flatten().flatten();
    for entry in entries {
        let mode = entry.metadata().map(|data| data.permissions().mode()).unwrap_or_default();
        names.push(format!("{} {:o}", entry.file_name().to_string_lossy(), mode & 0o777));
    }
    names.sort();
    names.join("\n")
}

/// The names of a folder's folders and files, digits and letters of a hash apart.
fn named(server: &Server, path: &str) -> String {
    let mut names = Vec::new();
    let entries = std::fs::read_dir(server.dir().file(path)).into_iter().flatten().flatten();
    for entry in entries {
        names.push(entry.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    format!("there: {}\n{}", server.dir().file(path).exists(), names.join("\n"))
}

/// A request from its short form.
fn read(text: &str) -> Ask {
    let mut parts = text.split('|');
    let mut words = parts.next().unwrap_or_default().split(' ');
    let mut word = || words.next().unwrap_or_default().to_owned();
    let mut first = word();
    let wire = match first.as_str() {
        "tls" => Wire::Tls,
        "h2" => Wire::Http2,
        "h2s" => Wire::Http2Tls,
        _ => Wire::Plain,
    };
    if wire != Wire::Plain {
        first = word();
    }
    let target = many(&word());
    let version = if word() == "HTTP/1.0" { "1.0" } else { "1.1" };
    let mut ask = Ask {
        wire,
        method: String::leak(first),
        target,
        host: "s1.example".to_owned(),
        version,
        fields: Vec::new(),
        body: "",
        framing: Framing::None,
    };
    for part in parts {
        let framing = match part.as_bytes().first() {
            Some(b'=') => Framing::Length,
            Some(b'~') => Framing::Open,
            _ => {
                let (name, value) = part.split_once(": ").unwrap_or((part, ""));
                match name {
                    "Host" => ask.host = value.to_owned(),
                    _ => ask.fields.push((String::leak(name.to_owned()), many(value))),
                }
                continue;
            }
        };
        (ask.framing, ask.body) = (framing, String::leak(many(&part[1..])));
    }
    let closes = !ask.is_http2() && !text.contains("Connection:");
    if closes && !text.contains("|kept") {
        ask.fields.push(("Connection", "close".to_owned()));
    }
    ask.fields.retain(|(name, _)| *name != "kept");
    ask
}

/// A text, longer by as many bytes as are said behind its `*`.
fn many(text: &str) -> String {
    match text.split_once('*').and_then(|(text, count)| Some((text, count.parse().ok()?))) {
        Some((text, count)) => format!("{text}{}", "a".repeat(count)),
        None => text.to_owned(),
    }
}
