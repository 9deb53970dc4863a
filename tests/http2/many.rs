//! More connections than a loop lets keep their tasks after a request.

use rustix::process::{Resource, getrlimit, setrlimit};
use serde_json::Value;
use weir_testkit::{Dir, Server};

use super::{Client, WEIR};

/// More than pause at once.
const CLIENTS: usize = 1_040;

/// A stream that is woken without a task reads what it was woken for, though no other stream's task
/// may rest any more.
#[test]
fn a_stream_that_wakes_among_many_paused_ones_is_answered_in_a_few_turns() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    let _ = setrlimit(Resource::Nofile, limit);
    if limit.maximum.is_some_and(|most| most < 3 * CLIENTS as u64) {
        eprintln!("skipped: too few descriptors");
        return;
    }
    let conf = "user root; worker_rlimit_nofile 4096; events { worker_connections 4096; }
        http { server {
            listen 127.0.0.1:%%PORT%%; http2 on; access_log off;
            location / { return 200 ok; }
            location /json { weir_status json; }
        } }";
    let server = Server::start_in(Dir::new(), WEIR, conf);
    let mut clients: Vec<Client> = (0..CLIENTS).map(|_| Client::connect(&server)).collect();
    let asked: Vec<u32> = clients.iter_mut().map(|client| client.get("/")).collect();
    for (client, stream) in clients.iter_mut().zip(asked) {
        assert_eq!(client.answer(stream).text(), "ok");
    }
    let turns = || -> u64 {
        let page: Value = serde_json::from_str(&server.get("/json").body()).unwrap();
        page["totals"]["turns"].as_u64().unwrap()
    };
    let last = clients.last_mut().unwrap();
    let before = turns();
    let stream = last.get("/");
    assert_eq!(last.answer(stream).text(), "ok");
    let took = turns() - before;
    assert!(took < 500, "{took} turns");
}
