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
use crate::rules::Who;
use crate::{WEIR, conf_with, furnish, hold, lay};
use guards::{Guard, TOKEN, When};
use handlers::{API, FILE, HANDLERS, Handler, Mark, PURGED};
use places::{BLOCKS, Block, Kind, WAYS, Way};

mod guards;
mod handlers;
mod places;

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
    let (mut dice, guards) = (Dice::new(seed), guards::all());
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
