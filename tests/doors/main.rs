//! A guard with several doors: every rule that refuses requests, at every way to what it guards,
//! over every protocol. A refused request sees nothing, asks no server behind and changes nothing.
//! Others get through, so that no door is walled up. nginx (`$WEIR_NGINX`, or `nginx` on the path)
//! decides the same.

#[path = "../tls/anybody.rs"]
mod anybody;
mod ask;
mod blocks;
mod entries;
mod found;
mod rules;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::unix::fs::symlink;
use std::path::Path;

use weir_testkit::{Client as Http1, Dir, Oracle, Server, ask_until};

use crate::ask::{Ask, Client};
use crate::entries::{ENTRIES, Entry, Needs, Seen, Way};
use crate::rules::{LUA, Phase, RULES, Rule, Who};

const WEIR: &str = env!("CARGO_BIN_EXE_weir");

/// One rule at one way, for one file.
struct Cell {
    id: String,
    rule: &'static Rule,
    entry: &'static Entry,
    file: &'static str,
}

/// What a server has besides what all have.
#[derive(Debug, Clone, Copy)]
struct Has {
    /// Lua and the other modules that are not nginx's own.
    added: bool,
    tunnel: bool,
}

fn cells(has: Has) -> Vec<Cell> {
    let mut cells = Vec::new();
    let mut n = 0;
    for rule in RULES.iter().chain([LUA]) {
        let mut files: Vec<_> = rule.refused.iter().chain(rule.allowed).map(|w| w.file).collect();
        files.sort_unstable();
        files.dedup();
        for entry in ENTRIES {
            n += 10;
            let there = match entry.needs {
                Needs::Nothing => true,
                Needs::Lua | Needs::Added => has.added,
                Needs::Tunnel => has.tunnel,
            };
            let meant = match rule.name {
                "root" => entry.target_has_file(),
                // There a body is a question, which these bodies are not.
                "client_max_body_size" if entry.name == "properties" => false,
                _ => rule.phase != Phase::File || entry.has_file(),
            };
            if !meant || !there || (std::ptr::eq(rule, LUA) && !has.added) {
                continue;
            }
            let files = files.iter().enumerate();
            cells.extend(files.map(|(i, file)| Cell {
                id: format!("c{:05}", n + i),
                rule,
                entry,
                file,
            }));
        }
    }
    cells
}

impl Cell {
    fn fill(&self, text: &str) -> String {
        let text = text.replace("RULE", self.rule.text).replace("OWN", "%%DIR%%/own/ID");
        let text = text.replace("DATA", "%%DIR%%/data").replace("PERCENT", &percent(self.file));
        let text = text.replace("HIT", "http://127.0.0.1:%%PORT1%%/hit/ID");
        let text = text.replace("TOLD", "http://127.0.0.1:%%PORT1%%");
        text.replace("FILE", self.file).replace("ID", &self.id)
    }

    /// The cell's own directory, as it is at first.
    fn furnish(&self, dir: &Dir) {
        let own = format!("own/{}", self.id);
        let _ = std::fs::remove_dir_all(dir.file(&own));
        furnish(dir, &own);
        let page = self.fill("<!--#include virtual=\"/ID/FILE\" -->");
        dir.write(&format!("{own}/page"), page);
    }
}

fn percent(file: &str) -> String {
    file.replace('t', "%74").replace('/', "%2F")
}

/// A directory of a name below `dir`, with what is asked for in it.
fn furnish(dir: &Dir, name: &str) {
    for file in ["secret.txt", "secret.txt.gz", "one/secret.txt"] {
        dir.write(&format!("{name}/{file}"), "SECRET");
    }
    dir.write(&format!("{name}/open"), "open");
    let link = |to: &str, from: &str| symlink(dir.file(to), dir.file(&format!("{name}/{from}")));
    link("outside.txt", "link.txt").expect("a link");
    link("outside.txt", "link.txt.gz").expect("a link");
    link(name, "round").expect("a link");
}

fn conf(cells: &[Cell]) -> String {
    let (mut inside, mut servers) = (String::new(), String::new());
    for cell in cells {
        inside += &cell.fill(cell.entry.text);
        inside.push('\n');
        if cell.entry.needs == Needs::Tunnel {
            servers += &cell.fill(
                "server { listen 127.0.0.1:%%PORT%%; listen 127.0.0.1:%%PORT2%% ssl; server_name ID.test;
                    location = /asked { if ($http_x_ok = '') { return 403; } return 204; }
                    location / { RULE tunnel_pass 127.0.0.1:%%PORT1%%; } }\n",
            );
        }
    }
    conf_with("%%DIR%%/none", &inside, &servers)
}

/// A server with these locations and files in `root`, and with these servers beside it.
fn conf_with(root: &str, inside: &str, servers: &str) -> String {
    format!(
        "user root; worker_processes 1; events {{ }}
         http {{
             error_log %%DIR%%/error.log crit; access_log off; log_format hit $http_x_n;
             ssl_certificate %%DIR%%/leaf.pem; ssl_certificate_key %%DIR%%/leaf.key;
             client_body_temp_path %%DIR%%/bodies; proxy_temp_path %%DIR%%/proxied;
             proxy_cache_path %%DIR%%/cache keys_zone=c:1m; proxy_cache_valid 1h;
             limit_req_zone $http_x_k zone=rate:1m rate=1r/m;
             limit_conn_zone $http_x_c zone=held:1m;
             set_real_ip_from 127.0.0.1; keepalive_requests 100000; lingering_timeout 1s;
             server {{
                 listen 127.0.0.1:%%PORT%% default_server; listen 127.0.0.1:%%PORT2%% ssl http2 default_server;
                 listen 127.0.0.1:%%PORT3%% http2 default_server;
                 root {root}; client_body_timeout 600s;
                 location = /asked {{ if ($http_x_ok = '') {{ return 403; }} return 204; }}
                 location = /hold {{ limit_conn held 1; proxy_pass http://127.0.0.1:%%PORT1%%; }}
                 {inside}
             }}
             {servers}
             server {{
                 listen 127.0.0.1:%%PORT1%%;
                 location /hit/ {{ access_log %%DIR%%/hits hit; return 200 SECRET; }}
                 location / {{ access_log %%DIR%%/hits hit; return 200 SECRET; }}
                 location /418 {{ return 418; }}
                 location ~ ^/accel(/.*)$ {{ add_header X-Accel-Redirect $1; return 200; }}
                 location ~ ^/named/(.*)$ {{ add_header X-Accel-Redirect @$1; return 200; }}
             }}
         }}"
    )
}

/// What a server told its clients.
struct Told {
    rule: &'static Rule,
    entry: &'static Entry,
    is_in: bool,
    status: u16,
    passed: bool,
    /// Under which the server behind knows the request.
    number: usize,
}

/// All that a server told, by rule, way, client and protocol.
type Outcomes = BTreeMap<String, Told>;

fn start(program: &str, cells: &[Cell]) -> Server {
    let dir = Dir::new();
    lay(&dir);
    furnish(&dir, "data");
    for cell in cells {
        cell.furnish(&dir);
    }
    Server::start_in(dir, program, &conf(cells))
}

/// What `conf_with` and the rules refer to.
fn lay(dir: &Dir) {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tls/testdata");
    for file in ["leaf.pem", "leaf.key"] {
        dir.write(file, std::fs::read(data.join(file)).expect("a certificate"));
    }
    for file in ["outside.txt", "beside.txt"] {
        dir.write(file, "SECRET");
    }
    dir.write("users", "u:{PLAIN}p\n");
}

/// A request that is not over: it has the one place of its key in `limit_conn`.
fn hold(program: &str, server: &Server) -> Http1 {
    let mut held = Http1::connect(server.port());
    held.send("POST /hold HTTP/1.1\r\nHost: a\r\nX-C: held\r\nContent-Length: 9\r\n\r\nx");
    let full = || server.ask("GET /hold", "X-C: held\r\n", "").status == 503;
    assert!(ask_until(full), "{program}: nobody is held");
    held
}

/// Asks at every door.
fn knock(program: &str, cells: &[Cell]) -> Outcomes {
    let mut server = start(program, cells);
    let held = hold(program, &server);
    let mut clients = [
        Client::Plain(server.port(), None),
        Client::Tls(server.port_at(2)),
        Client::Http2(server.port_at(2), None),
    ];
    let mut outcomes = Outcomes::new();
    let mut number = 0;
    for cell in cells {
        for client in &mut clients {
            if cell.entry.needs == Needs::Tunnel && client.name() == "HTTP/2" {
                continue;
            }
            // Allowed clients come first, and leave nothing to the next on their connection.
            for (is_in, list) in [(true, cell.rule.allowed), (false, cell.rule.refused)] {
                for (i, who) in list.iter().enumerate().filter(|(_, who)| who.file == cell.file) {
                    // A server may close a connection when it likes.
                    let mut again = || {
                        number += 2;
                        one(&server, cell, who, is_in, client, number)
                    };
                    let said = again().or_else(|_| again());
                    let (status, passed) = said.unwrap_or_else(|e| panic!("{program}: {e}"));
                    let whose = if is_in { "allowed" } else { "refused" };
                    let (rule, way) = (cell.rule.name, cell.entry.name);
                    let name = format!("{rule}, {way}, {whose} {i}, {}", client.name());
                    let (rule, entry) = (cell.rule, cell.entry);
                    outcomes.insert(
                        name,
                        Told { rule, entry, is_in, status, passed, number: number + 1 },
                    );
                }
            }
        }
    }
    drop((clients, held));
    server.stop();
    let hits = server.dir().read("hits");
    let hits: BTreeSet<usize> = hits.lines().filter_map(|line| line.parse().ok()).collect();
    for told in outcomes.values_mut().filter(|told| told.entry.seen == Seen::Asked) {
        told.passed = hits.contains(&told.number);
    }
    outcomes
}

/// One request, and what can be seen of it now.
fn one(
    server: &Server,
    cell: &Cell,
    who: &Who,
    is_in: bool,
    client: &mut Client,
    number: usize,
) -> io::Result<(u16, bool)> {
    let mut send = |n: usize| {
        let mut headers = vec![("X-N".to_owned(), n.to_string())];
        for (name, value) in who.headers {
            headers.push(((*name).to_owned(), value.replace("%N", &number.to_string())));
        }
        headers.extend(cell.entry.header.map(|(name, value)| (name.to_owned(), cell.fill(value))));
        let (method, target) = cell.entry.line;
        let (method, target) = (method.to_owned(), cell.fill(target));
        let ask = Ask { method, target, headers, body: who.body, chunked: who.chunked };
        client.ask(&ask)
    };
    let now = || snapshot(&server.dir().file(&format!("own/{}", cell.id)));
    let changes = cell.entry.seen == Seen::Changed;
    // What is stored gets its name after the answer.
    let has_changed = |before: &Snapshot, status: u16| {
        if status < 300 { ask_until(|| now() != *before) } else { now() != *before }
    };
    let fresh = || match changes {
        true => {
            cell.furnish(server.dir());
            now()
        }
        false => Snapshot::new(),
    };
    if who.again {
        let before = fresh();
        let (status, _) = send(number)?;
        let _ = changes && has_changed(&before, status);
    }
    let before = fresh();
    let (status, body) = send(number + 1)?;
    let passed = match cell.entry.seen {
        Seen::Secret => {
            body.contains("SECRET") || matches!(status, 200 | 207) && body.contains("secret.txt")
        }
        Seen::Asked => false,
        Seen::Changed if is_in => has_changed(&before, status),
        Seen::Changed => now() != before,
    };
    Ok((status, passed))
}

/// Names and contents below a directory.
type Snapshot = BTreeMap<String, Vec<u8>>;

fn snapshot(path: &Path) -> Snapshot {
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
    entries
        .map(|entry| {
            let name = entry.file_name().to_string_lossy().into_owned();
            (name, std::fs::read(entry.path()).unwrap_or_default())
        })
        .collect()
}

impl Told {
    /// Whether the request is to get through; `None` where a way has nothing to do with the rule.
    fn is_expected(&self) -> Option<bool> {
        let (rule, way) = (self.rule, self.entry.way);
        if UNJUDGED.iter().any(|(name, ways)| *name == rule.name && ways.contains(&self.entry.name))
        {
            return None;
        }
        let open = match rule.phase {
            Phase::Location if rule.name == "internal" => matches!(way, Way::Inside | Way::Sub),
            Phase::Preaccess => way == Way::Rewrite,
            Phase::Access => matches!(way, Way::Rewrite | Way::Sub),
            Phase::Body if !READERS.contains(&self.entry.name) => return None,
            Phase::Location | Phase::File | Phase::Body => false,
        };
        Some(self.is_in || open)
    }

    /// What is wrong with it.
    fn fault(&self) -> Option<&'static str> {
        match (self.is_expected()?, self.passed) {
            (true, false) => Some("may get through and does not"),
            (false, true) => Some("is refused and gets through"),
            _ => None,
        }
    }
}

/// Handlers that read the client's body.
const READERS: &[&str] = &[
    "proxied",
    "cached",
    "sliced",
    "put",
    "put over",
    "echo of a body",
    "X-Accel-Redirect",
    "error_page of a server",
];

/// Ways that a rule does not stand in, in nginx neither.
const UNJUDGED: &[(&str, &[&str])] = &[
    // Named locations are not looked for, and that is when the size is asked; a body that is thrown away, or that a
    // script does not pass on, is of no size. Methods of DAV refuse all bodies.
    (
        "client_max_body_size",
        &[
            "X-Accel-Redirect, named",
            "error_page, named",
            "tried, named",
            "SSI",
            "addition",
            "echo_location",
            "echo_subrequest_async",
            "post_action",
            "capture",
            "copy",
            "delete",
            "mkcol",
            "move",
            "tunnel",
        ],
    ),
    // What the location says of paths and answers is not there for the methods that it limits, and neither is the
    // block in locations inside it.
    (
        "limit_except",
        &[
            "X-Accel-Redirect, named",
            "error_page, named",
            "tried, named",
            "tried",
            "break",
            "asked about",
            "returned",
            "nested",
        ],
    ),
    // What the block leaves to others it does not take over from the location around it, as with these modules in nginx.
    ("limit_except", &["echo", "echo of a body", "purged"]),
];

/// Where weir and nginx decide differently: rule, ways, protocols, and why.
const DIFFERENT: &[(&str, &[&str], &str)] = &[
    // docs/differences.md: files that DAV changes, and a location that is off by a slash.
    ("disable_symlinks", &["copy", "delete", "move", "put over"], ""),
    ("root", &["off by a slash"], ""),
    // Whether the server behind was asked before a piece too many came.
    ("client_max_body_size in pieces", &["streamed"], ""),
    // nginx forgets that it has thrown a body away.
    ("client_max_body_size", &["SSI", "addition", "post_action"], "HTTP/2"),
];

fn may_differ(name: &str, told: &Told) -> bool {
    DIFFERENT.iter().any(|(rule, ways, protocol)| {
        *rule == told.rule.name && ways.contains(&told.entry.name) && name.ends_with(protocol)
    })
}

#[test]
fn a_refused_client_is_refused_at_every_listener() {
    let began = std::time::Instant::now();
    let ours = knock(WEIR, &cells(Has { added: true, tunnel: true }));
    let (mut wrong, mut compared) = (Vec::new(), 0);
    for (name, told) in &ours {
        if let Some(fault) = told.fault() {
            wrong.push(format!("{name}: {fault} ({})", told.status));
        }
    }
    if let Some(nginx) = Oracle::find() {
        let has = Has { added: false, tunnel: !nginx.is_old() };
        for (name, theirs) in knock(&nginx.path, &cells(has)) {
            let Some(told) = ours.get(&name) else { continue };
            compared += 1;
            if !may_differ(&name, told)
                && (told.status, told.passed) != (theirs.status, theirs.passed)
            {
                wrong.push(format!(
                    "{name}: {} {}, in nginx {} {}",
                    told.status, told.passed, theirs.status, theirs.passed
                ));
            }
        }
    }
    println!("{} cases in {:?}, {compared} of them compared", ours.len(), began.elapsed());
    assert!(wrong.is_empty(), "{}:\n{}", wrong.len(), wrong.join("\n"));
}
