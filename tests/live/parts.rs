//! A configuration in parts: those that are known come as their names.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};

use super::*;

/// What has sent a server its configurations in parts.
#[derive(Default)]
pub struct Sender {
    known: HashSet<String>,
}

impl Sender {
    /// The text in parts: one for each directive outside of blocks, and for each in `http`.
    fn body(&self, text: &str) -> (String, HashSet<String>) {
        let tree = weir_conf::read_text(Path::new("/t"), text.as_bytes());
        assert!(tree.broken.is_none(), "{:?}", tree.broken);
        let (mut out, mut names) = ("weir parts 1\n".to_owned(), HashSet::new());
        let mut part = |directive: &weir_conf::Directive, out: &mut String| {
            let text = weir_conf::print_at(std::slice::from_ref(directive), 0).unwrap();
            let text = String::from_utf8(text).unwrap();
            let mut hasher = DefaultHasher::new();
            text.hash(&mut hasher);
            let name = format!("{:x}", hasher.finish());
            let line = match self.known.contains(&name) {
                true => format!("part {name}\n"),
                false => format!("part {name} {}\n{text}", text.len()),
            };
            out.push_str(&line);
            names.insert(name);
        };
        for directive in &tree.main {
            match directive.name.is("http") {
                false => part(directive, &mut out),
                true => {
                    out.push_str("begin http\n");
                    directive.block().iter().for_each(|directive| part(directive, &mut out));
                    out.push_str("end\n");
                }
            }
        }
        (out, names)
    }

    pub fn put(&mut self, server: &Server, text: &str) -> Response {
        let text = text.replace("%%PORT%%", &server.port().to_string());
        let (body, names) = self.body(&text);
        let answer = put_body(server, &body);
        if answer.status == 200 {
            self.known = names;
        }
        answer
    }
}

fn put_body(server: &Server, body: &str) -> Response {
    let headers =
        format!("Content-Type: application/vnd.weir.parts\r\nContent-Length: {}\r\n", body.len());
    server.ask("PUT /api/config", &headers, body)
}

fn taken(answer: &Response, server: &Server) {
    assert_eq!(answer.status, 200, "{}\n{}", answer.body(), server.log());
    assert_eq!(json(answer)["taken_by"], "running workers", "{}", answer.body());
}

/// With this many servers, of which one says `word`.
fn many(word: &str) -> String {
    let one = |i: usize| {
        let own = if i == 7 { word } else { "same" };
        format!(
            "server {{ listen 127.0.0.1:%%PORT%%; server_name s{i}.test; location / {{ return 200 {own}; }} }}\n"
        )
    };
    let text = conf("", &(0..20).map(one).collect::<String>(), "location / { return 200 rest; }");
    let at = text.rfind("%%PORT%%;").unwrap();
    text[..at].to_owned() + &text[at..].replacen(';', " default_server;", 1)
}

fn answer(server: &Server, host: &str) -> String {
    let mut client = server.connect();
    client.send(format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n"));
    client.response().body()
}

#[test]
fn known_parts_come_as_their_names_and_all_else_is_as_for_a_text() {
    let server = Server::start(WEIR, &many("old"));
    let workers = server.workers();
    let mut sender = Sender::default();
    taken(&sender.put(&server, &many("first")), &server);
    for word in ["second", "third"] {
        taken(&sender.put(&server, &many(word)), &server);
        assert_eq!(answer(&server, "s7.test"), word);
        assert_eq!(answer(&server, "s8.test"), "same");
        assert_eq!(answer(&server, "x.test"), "rest");
    }
    // Texts in between, a reload, and new workers leave the parts.
    take(&server, &many("text"));
    taken(&sender.put(&server, &many("fourth")), &server);
    assert_eq!(server.workers(), workers);
    server.reload();
    assert_eq!(answer(&server, "s7.test"), "old");
    taken(&sender.put(&server, &many("fifth")), &server);
    for pid in server.workers() {
        server.signal_worker(pid, Signal::KILL);
        server.wait_gone(pid);
    }
    ask_until(|| server.workers().len() == 2);
    assert_eq!(answer(&server, "s7.test"), "fifth");
    taken(&sender.put(&server, &many("sixth")), &server);
    assert_eq!(answer(&server, "s7.test"), "sixth");
    assert_eq!(answer(&server, "s8.test"), "same");
}

#[test]
fn what_is_wrong_in_a_part_is_told_with_its_name_and_line() {
    let server = Server::start(WEIR, &many("old"));
    let mut sender = Sender::default();
    taken(&sender.put(&server, &many("new")), &server);
    let answer_of = |edit: &dyn Fn(String) -> String| {
        let text = many("newer").replace("%%PORT%%", &server.port().to_string());
        let (body, _) = sender.body(&text);
        let answer = put_body(&server, &edit(body));
        (answer.status, json(&answer)["error"].clone())
    };
    let (status, error) = answer_of(&|body| body.replace("return 200 newer", "retrun 200 newer"));
    assert_eq!((status, &error["line"]), (422, &Value::from(5)), "{error}");
    let name = error["file"].as_str().unwrap().strip_prefix("part ").unwrap();
    let text = error["text"].as_str().unwrap();
    assert!(text.contains(&format!("in part {name}:5\n")) && text.contains('^'), "{text}");
    assert_eq!(inside(&error), [7, 2, 0], "{error}");
    let (status, error) = answer_of(&|body| body + "part unheard.of\n");
    assert_eq!(status, 404);
    assert!(error["text"].as_str().unwrap().contains("unheard.of"), "{error}");
    let (status, error) = answer_of(&|body| body + "part a 5\n");
    assert_eq!(status, 400, "{error}");
    assert_eq!(answer(&server, "s7.test"), "new");
    // A known part is wrong, now that another one is gone.
    let logging = |there: &str| {
        let locations = "access_log /dev/null own; location / { return 200 logged; }";
        conf("", there, locations)
    };
    taken(&sender.put(&server, &logging("log_format own $uri;")), &server);
    let refused = sender.put(&server, &logging(""));
    let error = &json(&refused)["error"];
    assert_eq!((refused.status, &error["line"]), (422, &Value::from(3)), "{error}");
    assert!(error["file"].as_str().unwrap().starts_with("part "), "{error}");
    assert!(error["text"].as_str().unwrap().contains("unknown log format \"own\""), "{error}");
    assert_eq!(answer(&server, "x.test"), "logged");
}

#[test]
fn servers_that_come_to_a_group_leave_all_other_blocks_as_they_are() {
    let text = |word: &str| {
        let http = format!("upstream u {{ server 127.0.0.1:9; }} {}", word);
        conf("", &http, "location / { return 200 rest; }")
    };
    let server = Server::start(WEIR, &text(""));
    let mut sender = Sender::default();
    taken(&sender.put(&server, &text("")), &server);
    let add = "{\"server\": \"127.0.0.1:1\"}";
    let headers = format!("Content-Type: application/json\r\nContent-Length: {}\r\n", add.len());
    assert_eq!(server.ask("POST /api/upstreams/u/servers", &headers, add).status, 200);
    assert_eq!(server.ask("POST /api/upstreams/u/servers", &headers, add).status, 409);
    // The group as its part says.
    taken(&sender.put(&server, &text("sendfile on;")), &server);
    assert_eq!(server.ask("POST /api/upstreams/u/servers", &headers, add).status, 200);
}

#[test]
fn a_variable_that_is_unknown_is_told_with_the_part_that_uses_it() {
    let server = Server::start(WEIR, &many("old"));
    let mut sender = Sender::default();
    taken(&sender.put(&server, &many("first")), &server);
    let wrong = many("a$nosuch").replace("%%PORT%%", &server.port().to_string());
    let (body, _) = sender.body(&wrong);
    let answer = put_body(&server, &body);
    let error = json(&answer)["error"].clone();
    assert_eq!(answer.status, 422, "{error}");
    // Only this part is new, so it stands in the body with its length.
    let part =
        body.lines().find(|line| line.starts_with("part ") && line.matches(' ').count() == 2);
    let name = part.and_then(|line| line.rsplit_once(' ')).map(|(name, _)| name);
    assert_eq!(error["file"].as_str(), name, "{error}");
    let lines = body.split_once(part.unwrap()).unwrap().1.lines().skip(1);
    let line = lines.zip(1..).find(|(line, _)| line.contains("$nosuch")).unwrap().1;
    assert_eq!(error["line"], line, "{error}");
    // The message is nginx's, which names no line.
    let text = error["text"].as_str().unwrap();
    assert!(text.starts_with("unknown \"nosuch\" variable\n"), "{text}");
}
