//! Every access rule and every content handler in every kind of block, by every way, over every
//! version of HTTP. A rule that refuses a request in a location refuses it in the location's blocks
//! as well. A block has the same content handler as in nginx.
//!
//! Cases are drawn: `WEIR_CASES` for more than 150, `WEIR_SEED` for the same again. With nginx (`$WEIR_NGINX`) statuses
//! are the same, too.

use std::collections::BTreeMap;
use std::io;

use weir_testkit::{Dice, Dir, Oracle, Server, number, seed};

use crate::ask::{Ask, Client};
use crate::rules::{ANYBODY, RULES, Who, with};
use crate::{WEIR, conf_with, furnish, hold, lay};

/// What is asked for in a location.
struct Handler {
    name: &'static str,
    text: &'static str,
    method: &'static str,
    target: &'static str,
    /// What shows that it has answered: a text, or a status.
    mark: Mark,
    /// Whether it is kept in `limit_except`, as in nginx.
    is_kept_by_limit: bool,
    /// Whether its directives may stand in `if`, and in `limit_except`.
    places: (bool, bool),
    /// It answers in the rewrite phase.
    is_code: bool,
    /// Directives that nginx itself does not have.
    is_added: bool,
}

#[derive(Debug, Clone, Copy)]
enum Mark {
    Text(&'static str),
    Status(&'static [u16]),
}

impl Mark {
    fn is_in(self, (status, body): &(u16, String)) -> bool {
        match self {
            Mark::Text(text) => body.contains(text),
            Mark::Status(list) => list.contains(status),
        }
    }
}

/// A file.
const FILE: Handler = Handler {
    name: "static",
    text: "",
    method: "GET",
    target: "secret.txt",
    mark: Mark::Text("SECRET"),
    is_kept_by_limit: true,
    places: (false, false),
    is_code: false,
    is_added: false,
};

/// Settings of what answers for files.
const fn files(name: &'static str, text: &'static str) -> Handler {
    Handler { name, text, ..FILE }
}

/// A handler that `limit_except` does not keep.
const fn lost(name: &'static str, text: &'static str, mark: Mark) -> Handler {
    Handler { name, text, mark, is_kept_by_limit: false, ..FILE }
}

/// Passes to a server that is not there.
const fn passed(name: &'static str, text: &'static str) -> Handler {
    Handler { name, text, mark: Mark::Status(&[502]), places: (true, false), ..FILE }
}

/// weir's own.
const fn own(name: &'static str, text: &'static str, mark: &'static str) -> Handler {
    Handler { name, text, mark: Mark::Text(mark), is_added: true, ..FILE }
}

const API: &str = "weir_api";
const PURGED: &str = "purge by its method";

const HANDLERS: &[Handler] = &[
    FILE,
    Handler { target: "one/", mark: Mark::Text("secret.txt"), ..files("list", "autoindex on;") },
    Handler { target: "one/", ..files("random", "random_index on;") },
    Handler {
        target: "one/",
        mark: Mark::Text("secret.txt"),
        is_added: true,
        ..files("table", "fancyindex on;")
    },
    files("packed", "gzip_static always;"),
    files("tried", "try_files $uri =404;"),
    files("kept open", "open_file_cache max=10;"),
    lost("flv", "flv;", Mark::Text("SECRET")),
    lost("mp4", "mp4;", Mark::Text("SECRET")),
    lost("empty_gif", "empty_gif;", Mark::Text("GIF89a")),
    lost("stub_status", "stub_status;", Mark::Text("Active connections")),
    Handler {
        places: (true, false),
        ..lost(
            "memcached",
            "set $memcached_key k; memcached_pass 127.0.0.1:%%PORT4%%;",
            Mark::Status(&[502]),
        )
    },
    Handler { is_code: true, places: (true, false), ..files("return", "return 200 SECRET;") },
    Handler { places: (true, true), ..files("proxy", "proxy_pass HIT;") },
    files("cache", "proxy_pass HIT; proxy_cache c;"),
    files("slices", "slice 1k; proxy_pass HIT;"),
    passed("fastcgi", "fastcgi_pass 127.0.0.1:%%PORT4%%;"),
    passed("uwsgi", "uwsgi_pass 127.0.0.1:%%PORT4%%;"),
    passed("scgi", "scgi_pass 127.0.0.1:%%PORT4%%;"),
    passed("grpc", "grpc_pass 127.0.0.1:%%PORT4%%;"),
    Handler {
        method: "PUT",
        target: "new",
        mark: Mark::Status(&[201, 204]),
        ..files("dav", "dav_methods PUT;")
    },
    Handler {
        is_added: true,
        places: (true, false),
        ..lost("echo", "echo SECRET;", Mark::Text("SECRET"))
    },
    Handler {
        is_added: true,
        places: (true, false),
        ..lost("lua", "content_by_lua_block { ngx.say('FROM LUA') }", Mark::Text("FROM LUA"))
    },
    Handler { is_added: true, ..lost("purge", "proxy_cache_purge c ID;", Mark::Status(&[412])) },
    Handler {
        method: "PURGE",
        mark: Mark::Status(&[412]),
        is_added: true,
        ..files(PURGED, "proxy_pass HIT; proxy_cache c; proxy_cache_purge PURGE from 10.0.0.1;")
    },
    own(API, "weir_api token=%%DIR%%/token;", "no such thing"),
    own("weir_status", "weir_status;", "# HELP"),
    own("weir_dashboard", "weir_dashboard;", "<script>"),
];

/// When a rule is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum When {
    /// A location is found.
    Found,
    /// The code of its location runs.
    Code,
    /// Behind that code.
    Script,
    Preaccess,
    /// Not in subrequests.
    Access,
    /// The handler of this name asks.
    Handler(&'static str),
}

/// A rule, and with which status it refuses.
#[derive(Clone, Copy)]
struct Guard {
    name: &'static str,
    text: &'static str,
    when: When,
    status: u16,
    /// Whether it may stand in `if`, and in `limit_except`.
    places: (bool, bool),
    refused: &'static [Who],
    allowed: &'static [Who],
    is_added: bool,
}

/// One of `RULES`.
fn known(name: &str, when: When, status: u16) -> Guard {
    let rule = RULES.iter().find(|rule| rule.name == name).expect("a rule of this name");
    let places = (false, matches!(name, "access" | "auth_basic"));
    let (refused, allowed) = (rule.refused, rule.allowed);
    Guard {
        name: rule.name,
        text: rule.text,
        when,
        status,
        places,
        refused,
        allowed,
        is_added: false,
    }
}

const OK: &[Who] = &[with(&[("X-Ok", "1")])];
const TOKEN: (&str, &str) = ("Authorization", "Bearer 0123456789abcdef");

const fn script(name: &'static str, text: &'static str, when: When) -> Guard {
    let (refused, allowed) = (&[ANYBODY], OK);
    Guard { name, text, when, status: 403, places: (true, false), refused, allowed, is_added: true }
}

const fn code(
    name: &'static str,
    text: &'static str,
    refused: &'static [Who],
    allowed: &'static [Who],
) -> Guard {
    let (when, places) = (When::Code, (false, false));
    Guard { name, text, when, status: 403, places, refused, allowed, is_added: false }
}

fn guards() -> Vec<Guard> {
    let known = [
        known("internal", When::Found, 404),
        known("access", When::Access, 403),
        known("auth_basic", When::Access, 401),
        known("auth_request", When::Access, 403),
        known("satisfy", When::Access, 403),
        known("limit_req", When::Preaccess, 503),
        known("limit_conn", When::Preaccess, 503),
    ];
    [&known, GUARDS].concat()
}

/// Those that are not among `RULES`.
const GUARDS: &[Guard] = &[
    script(
        "access_by_lua",
        "access_by_lua_block { if not ngx.var.http_x_ok then ngx.exit(403) end }",
        When::Access,
    ),
    script(
        "access_by_lua that answers",
        "access_by_lua_block { if not ngx.var.http_x_ok then ngx.status = 403 ngx.say('no') end }",
        When::Access,
    ),
    script(
        "rewrite_by_lua",
        "rewrite_by_lua_block { if not ngx.var.http_x_ok then ngx.exit(403) end }",
        When::Script,
    ),
    script(
        "rewrite_by_lua that answers",
        "rewrite_by_lua_block { if not ngx.var.http_x_ok then ngx.status = 403 ngx.say('no') end }",
        When::Script,
    ),
    code(
        "secure_link",
        "secure_link $http_x_link; secure_link_md5 secret; if ($secure_link = '') { return 403; }",
        &[ANYBODY, with(&[("X-Link", "Xr4ilOzQ4PCOq3aQ0qbuaA")])],
        &[with(&[("X-Link", "Xr4ilOzQ4PCOq3aQ0qbuaQ")])],
    ),
    code(
        "valid_referers",
        "valid_referers a.test; if ($invalid_referer) { return 403; }",
        &[ANYBODY, with(&[("Referer", "http://b.test/")])],
        &[with(&[("Referer", "http://a.test/")])],
    ),
    Guard {
        name: "token",
        text: "",
        when: When::Handler(API),
        status: 401,
        places: (false, false),
        refused: &[ANYBODY, with(&[("Authorization", "Bearer 0123456789abcdeg")])],
        allowed: &[with(&[TOKEN])],
        is_added: true,
    },
    Guard {
        name: "purge from",
        text: "",
        when: When::Handler(PURGED),
        status: 403,
        places: (false, false),
        refused: &[ANYBODY, with(&[("X-Real-IP", "10.0.0.2")])],
        allowed: &[with(&[("X-Real-IP", "10.0.0.1")])],
        is_added: true,
    },
];

/// Where rule and handler stand.
struct Block {
    name: &'static str,
    text: &'static str,
    /// Behind `/ID/`.
    inner: &'static str,
    /// The code of the location with the rule, and with the handler, runs.
    runs: (bool, bool),
    /// `limit_except` decides whether the handler is kept.
    limits: bool,
    /// The methods that `limit_except` has nothing to do with, where it refuses.
    excepts: &'static [&'static str],
    /// The rule, and the handler, stand in a block that not all of them may stand in.
    rule_in: Option<Inside>,
    handler_in: Option<Inside>,
    /// No request comes here as it was made.
    is_named: bool,
}

#[derive(Debug, Clone, Copy)]
enum Inside {
    If,
    LimitExcept,
}

impl Inside {
    fn allows(self, (by_if, by_limit): (bool, bool)) -> bool {
        match self {
            Inside::If => by_if,
            Inside::LimitExcept => by_limit,
        }
    }
}

const PLAIN: Block = Block {
    name: "location",
    text: "location /ID/ { RULE HANDLER }",
    inner: "",
    runs: (true, true),
    limits: false,
    excepts: &[],
    rule_in: None,
    handler_in: None,
    is_named: false,
};

const fn block(name: &'static str, text: &'static str) -> Block {
    Block { name, text, ..PLAIN }
}

const fn nested(name: &'static str, text: &'static str) -> Block {
    Block { name, text, inner: "in/", runs: (false, true), ..PLAIN }
}

const fn limited(name: &'static str, text: &'static str) -> Block {
    Block { name, text, runs: (false, false), limits: true, ..PLAIN }
}

const BLOCKS: &[Block] = &[
    PLAIN,
    nested("location in a location", "location /ID/ { RULE location /ID/in/ { HANDLER } }"),
    nested("pattern in a location", "location /ID/ { RULE location ~ in/ { HANDLER } }"),
    Block {
        is_named: true,
        ..block(
            "named location",
            "location /ID/ { try_files /none @ID; } location @ID { RULE HANDLER }",
        )
    },
    block("if of the server", "if ($uri ~ ^/ID/) { set $seen 1; } location /ID/ { RULE HANDLER }"),
    block("if", "location /ID/ { RULE HANDLER if ($uri) { add_header X-If 1; } }"),
    block("if before", "location /ID/ { if ($uri) { add_header X-If 1; } RULE HANDLER }"),
    block(
        "two ifs",
        "location /ID/ { if ($uri) { expires 1s; } RULE HANDLER if ($uri) { add_header X-If 1; } }",
    ),
    Block {
        handler_in: Some(Inside::If),
        ..block("handler of an if", "location /ID/ { RULE if ($uri) { HANDLER } }")
    },
    Block {
        rule_in: Some(Inside::If),
        ..block("rule of an if", "location /ID/ { if ($uri) { RULE } HANDLER }")
    },
    limited("limit_except", "location /ID/ { RULE HANDLER limit_except LOCK { access_log off; } }"),
    Block {
        rule_in: Some(Inside::LimitExcept),
        ..limited("rule of limit_except", "location /ID/ { HANDLER limit_except LOCK { RULE } }")
    },
    Block {
        handler_in: Some(Inside::LimitExcept),
        limits: false,
        ..limited("handler of limit_except", "location /ID/ { RULE limit_except LOCK { HANDLER } }")
    },
    Block {
        excepts: &["GET", "PUT"],
        ..block(
            "if beside limit_except, not limited",
            "location /ID/ { RULE HANDLER if ($uri) { add_header X-If 1; } limit_except GET PUT { deny all; } }",
        )
    },
    limited(
        "if beside limit_except, limited",
        "location /ID/ { RULE HANDLER if ($uri) { add_header X-If 1; } limit_except LOCK { access_log off; } }",
    ),
    nested(
        "if in a location in a location",
        "location /ID/ { RULE location /ID/in/ { HANDLER if ($uri) { add_header X-If 1; } } }",
    ),
    Block {
        runs: (false, false),
        limits: true,
        ..nested(
            "limit_except in a location in a location",
            "location /ID/ { RULE location /ID/in/ { HANDLER limit_except LOCK { access_log off; } } }",
        )
    },
];

/// How a request comes there: `TO` is the path.
struct Way {
    name: &'static str,
    text: &'static str,
    kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Direct,
    /// By a redirect inside the server.
    Inside,
    /// By a subrequest: its body is in the answer.
    Included,
    /// By a subrequest that decides about the request.
    Asked,
    /// By a subrequest of which nothing is seen but that the server behind was asked.
    Unseen,
}

const fn way(name: &'static str, kind: Kind, text: &'static str) -> Way {
    Way { name, text, kind }
}

const WAYS: &[Way] = &[
    way("direct", Kind::Direct, ""),
    way("error_page", Kind::Inside, "location = /ID-d { error_page 418 = TO; return 418; }"),
    way("try_files", Kind::Inside, "location = /ID-d { try_files /none TO; }"),
    way("rewrite", Kind::Inside, "rewrite ^/ID-d$ TO last;"),
    way("X-Accel-Redirect", Kind::Inside, "location = /ID-d { proxy_pass HIT/accelTO; }"),
    way("SSI", Kind::Included, "location = /ID-d { ssi on; ssi_types *; alias PAGE; }"),
    way("auth_request", Kind::Asked, "location = /ID-d { auth_request TO; alias OPEN; }"),
    way("mirror", Kind::Unseen, "location = /ID-d { mirror TO; alias OPEN; }"),
];

/// One of each.
struct Case<'a> {
    id: String,
    handler: &'static Handler,
    guard: &'a Guard,
    block: &'static Block,
    way: &'static Way,
}

impl<'a> Case<'a> {
    fn draw(dice: &mut Dice, guards: &'a [Guard], n: usize) -> Case<'a> {
        loop {
            let guard = &guards[dice.below(guards.len())];
            let handler = match guard.when {
                When::Handler(name) => HANDLERS.iter().find(|handler| handler.name == name),
                _ => HANDLERS.get(dice.below(HANDLERS.len())),
            };
            let case = Case {
                id: format!("c{n:05}"),
                handler: handler.expect("a handler"),
                guard,
                block: &BLOCKS[dice.below(BLOCKS.len())],
                way: &WAYS[if dice.one_in(2) { 0 } else { dice.below(WAYS.len()) }],
            };
            if case.is_possible() {
                return case;
            }
        }
    }

    fn is_possible(&self) -> bool {
        let Case { handler, guard, block, way, .. } = self;
        let is_api = handler.name == API;
        let has_text = handler.method == "GET" && matches!(handler.mark, Mark::Text(_));
        // A token and a password are the same header, and an address is asked for by other rules.
        let whole = !(is_api && guard.name == "auth_basic")
            && (handler.name != PURGED || guard.when == When::Handler(PURGED))
            && (block.excepts.is_empty() || block.excepts.contains(&handler.method));
        let seen = match way.kind {
            Kind::Direct => true,
            // A redirect makes a GET of it.
            Kind::Inside => handler.method == "GET",
            Kind::Included => has_text,
            // What the API says of such a path is 404.
            Kind::Asked => has_text && !is_api,
            Kind::Unseen => handler.name == "proxy",
        };
        let rule = block.rule_in.is_none_or(|inside| inside.allows(guard.places));
        let stands = block.handler_in.is_none_or(|inside| inside.allows(handler.places));
        whole && seen && rule && stands
    }

    fn is_added(&self) -> bool {
        self.handler.is_added || self.guard.is_added
    }

    fn name(&self) -> String {
        let Case { id, handler, guard, block, way } = self;
        format!("{id}: {}, {}, {}, {}", handler.name, guard.name, block.name, way.name)
    }

    fn target(&self) -> String {
        format!("/{}/{}{}", self.id, self.block.inner, self.handler.target)
    }

    fn text(&self) -> String {
        let text = format!("{} {}\n", self.block.text, self.way.text);
        let text = text.replace("RULE", self.guard.text).replace("HANDLER", self.handler.text);
        let text = text.replace("HIT", "http://127.0.0.1:%%PORT1%%");
        let text = text.replace("PAGE", "%%DIR%%/pages/ID").replace("OPEN", "%%DIR%%/open");
        text.replace("TO;", &format!("{};", self.target()))
            .replace("TO last", &format!("{} last", self.target()))
            .replace("ID", &self.id)
    }

    /// Whether the handler that the configuration names is the one that answers.
    fn answers(&self) -> bool {
        let is_code_lost = self.handler.is_code && !self.block.runs.1;
        !is_code_lost && (!self.block.limits || self.handler.is_kept_by_limit)
    }

    /// Whether the rule is asked before anything answers.
    fn is_guarded(&self) -> bool {
        let kind = self.way.kind;
        let is_sub = matches!(kind, Kind::Included | Kind::Asked | Kind::Unseen);
        // Nothing comes behind the code that answers.
        let is_early = self.handler.is_code && self.answers();
        match self.guard.when {
            When::Found => kind == Kind::Direct && !self.block.is_named,
            When::Code => self.block.runs.0,
            When::Script | When::Preaccess => !is_early,
            When::Access => !is_early && !is_sub,
            When::Handler(_) => self.answers(),
        }
    }

    /// What shows that the location has answered.
    fn mark(&self) -> Mark {
        if self.answers() { self.handler.mark } else { FILE.mark }
    }

    fn fault(&self, is_in: bool, told: &Told) -> Option<&'static str> {
        let may = is_in || !self.is_guarded();
        let refused = match self.way.kind {
            Kind::Direct | Kind::Inside => told.answer.0 == self.guard.status && !told.passed,
            Kind::Included | Kind::Asked | Kind::Unseen => !told.passed,
        };
        match may {
            true if !told.passed => Some("may get through and does not"),
            false if !refused => Some("is refused and gets through"),
            _ => None,
        }
    }
}

/// What a server told a client.
struct Told {
    answer: (u16, String),
    passed: bool,
    /// Under which the server behind knows the request.
    number: usize,
}

type Outcomes = BTreeMap<String, Told>;

/// What each request is, by the case's place in the list, whether it is to be let in, which of these it is, and the protocol.
fn name(case: &Case<'_>, is_in: bool, i: usize, protocol: &str) -> String {
    let whose = if is_in { "allowed" } else { "refused" };
    format!("{}, {whose} {i}, {protocol}", case.name())
}

fn run(program: &str, cases: &[&Case<'_>]) -> Outcomes {
    let dir = Dir::new();
    lay(&dir);
    dir.write("token", "0123456789abcdef");
    dir.write("open", "open");
    let mut text = String::new();
    for case in cases {
        furnish(&dir, &format!("trees/{}", case.id));
        furnish(&dir, &format!("trees/{}/in", case.id));
        let page = format!("<!--#include virtual=\"{}\" -->", case.target());
        dir.write(&format!("pages/{}", case.id), page);
        text += &case.text();
    }
    let mut server = Server::start_in(dir, program, &conf_with("%%DIR%%/trees", &text, ""));
    let held = hold(program, &server);
    let mut clients = [
        Client::Old(server.port()),
        Client::Plain(server.port(), None),
        Client::Known(server.port_at(3), None),
    ];
    let (mut outcomes, mut number) = (Outcomes::new(), 0);
    for case in cases {
        for client in &mut clients {
            for (is_in, list) in [(true, case.guard.allowed), (false, case.guard.refused)] {
                for (i, who) in list.iter().enumerate() {
                    number += 1;
                    let said = ask(case, who, client, number).or_else(|_| {
                        // A server may close a connection when it likes.
                        number += 1;
                        ask(case, who, client, number)
                    });
                    let name = name(case, is_in, i, client.name());
                    let answer = said.unwrap_or_else(|e| panic!("{program}: {name}: {e}"));
                    let passed = match case.way.kind {
                        Kind::Direct | Kind::Inside | Kind::Included => case.mark().is_in(&answer),
                        Kind::Asked => answer.0 == 200,
                        Kind::Unseen => false,
                    };
                    outcomes.insert(name, Told { answer, passed, number });
                }
            }
        }
    }
    drop((clients, held));
    server.stop();
    let hits = std::fs::read_to_string(server.dir().file("hits")).unwrap_or_default();
    for case in cases.iter().filter(|case| case.way.kind == Kind::Unseen) {
        let prefix = format!("{}:", case.id);
        for (_, told) in outcomes.iter_mut().filter(|(name, _)| name.starts_with(&prefix)) {
            let line = told.number.to_string();
            told.passed = hits.lines().any(|hit| hit == line);
        }
    }
    outcomes
}

fn ask(
    case: &Case<'_>,
    who: &Who,
    client: &mut Client,
    number: usize,
) -> io::Result<(u16, String)> {
    let filled = |(name, value): &(&str, &str)| {
        ((*name).to_owned(), value.replace("%N", &number.to_string()))
    };
    let mut headers: Vec<_> = who.headers.iter().map(filled).collect();
    if case.handler.name == API && case.guard.when != When::Handler(API) {
        headers.push((TOKEN.0.to_owned(), TOKEN.1.to_owned()));
    }
    let target = match case.way.kind {
        Kind::Direct => case.target(),
        _ => format!("/{}-d", case.id),
    };
    let body = if case.handler.method == "PUT" { "x" } else { "" };
    let method = case.handler.method.to_owned();
    let mut ask = Ask { method, target, headers, body, chunked: false };
    if who.again {
        client.ask(&ask)?;
    }
    ask.headers.push(("X-N".to_owned(), number.to_string()));
    client.ask(&ask)
}

#[test]
fn a_rule_holds_in_every_block_over_every_version_of_http() {
    let began = std::time::Instant::now();
    let seed = seed();
    let (mut dice, guards) = (Dice::new(seed), guards());
    let count = number("WEIR_CASES").unwrap_or(150) as usize;
    let cases: Vec<Case<'_>> = (0..count).map(|n| Case::draw(&mut dice, &guards, n)).collect();
    let (mut wrong, mut asked, mut compared) = (Vec::new(), 0, 0);
    let nginx = Oracle::find().filter(|nginx| !nginx.is_old());
    // A server reads its configuration at once, and a limit is of all its requests.
    for some in cases.chunks(500) {
        let ours = run(WEIR, &some.iter().collect::<Vec<_>>());
        asked += ours.len();
        for case in some {
            for (is_in, list) in [(true, case.guard.allowed), (false, case.guard.refused)] {
                for (i, protocol) in (0..list.len()).flat_map(|i| PROTOCOLS.map(|p| (i, p))) {
                    let name = name(case, is_in, i, protocol);
                    if let Some(fault) = case.fault(is_in, &ours[&name]) {
                        wrong.push(format!("{name}: {fault} ({})", ours[&name].answer.0));
                    }
                }
            }
        }
        let Some(nginx) = &nginx else { continue };
        let plain: Vec<_> = some.iter().filter(|case| !case.is_added()).collect();
        for (name, theirs) in run(&nginx.path, &plain) {
            let told = &ours[&name];
            compared += 1;
            let (ours, theirs) = ((told.answer.0, told.passed), (theirs.answer.0, theirs.passed));
            if ours != theirs {
                wrong.push(format!("{name}: {ours:?}, in nginx {theirs:?}"));
            }
        }
    }
    println!("{count} cases, {asked} requests, {compared} compared, {:?}", began.elapsed());
    assert!(wrong.is_empty(), "WEIR_SEED={seed}, {}:\n{}", wrong.len(), wrong.join("\n"));
}

const PROTOCOLS: [&str; 3] = ["HTTP/1.0", "HTTP/1.1", "HTTP/2 in the clear"];
