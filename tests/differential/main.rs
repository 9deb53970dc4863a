//! The same configurations and the same seeded requests to nginx and to weir: equal status, headers and body.
//!
//! nginx is `$WEIR_NGINX`, or `nginx` on the path; without one nothing is compared, and the output says so.
//! `WEIR_SEED` replays a run, `WEIR_REQUESTS` sets how many requests each configuration gets.

mod answers;
mod requests;
mod sites;

use std::thread;

use weir_testkit::{Client, Dir, Oracle, Server, number};

use crate::answers::Answers;
use crate::requests::Requests;

const WEIR: &str = env!("CARGO_BIN_EXE_weir");

#[test]
fn weir_answers_as_nginx_does() {
    let Some(nginx) = Oracle::find() else { return };
    let seed = number("WEIR_SEED").unwrap_or(1);
    let each = number("WEIR_REQUESTS").unwrap_or(750);
    // Most of the time is that of connections that the servers keep open, so the sites are asked at once.
    let compare = |&(name, conf)| differences(&nginx, name, conf, seed, each);
    let differences: Vec<String> = thread::scope(|scope| {
        let sites: Vec<_> = sites::ALL.iter().map(|site| scope.spawn(|| compare(site))).collect();
        sites.into_iter().flat_map(|site| site.join().unwrap()).collect()
    });
    let total = each * sites::ALL.len() as u64;
    println!(
        "{total} requests compared with nginx {}, {} differ",
        nginx.version,
        differences.len()
    );
    // All of them at once would hide the first.
    for difference in differences.iter().take(8) {
        println!("{difference}");
    }
    assert!(differences.is_empty(), "{} of {total} answers differ", differences.len());
}

/// Asks both servers as many requests, and says where their answers differ.
fn differences(nginx: &Oracle, name: &str, conf: &str, seed: u64, each: u64) -> Vec<String> {
    let theirs = Server::start_in(sites::files(Dir::new()), &nginx.path, conf);
    let ours = Server::start_in(sites::files(Dir::new()), WEIR, conf);
    let mut requests = Requests::new(seed, name);
    let mut differences = Vec::new();
    for i in 0..each {
        let request = requests.next();
        let mut expected = ask(&theirs, &request);
        let got = ask(&ours, &request);
        // On a busy machine nginx may lose its own server for a moment.
        if expected.to_string().contains(" 502 ") && expected.differs(&got).is_some() {
            expected = ask(&theirs, &request);
        }
        if let Some(difference) = expected.differs(&got) {
            differences.push(format!(
                "{name}, request {i} of seed {seed}: {difference}\n{}\n-- nginx:\n{expected}\n-- weir:\n{got}\n",
                String::from_utf8_lossy(&request).escape_debug()
            ));
        }
    }
    differences
}

/// Sends one or more requests on a connection of their own and reads until the server closes it.
fn ask(server: &Server, request: &[u8]) -> Answers {
    let mut client = Client::connect(server.port());
    // A server that refuses a head closes before it has read all: that is an answer, too.
    let _ = client.try_send(request);
    Answers::read(&client.rest_bytes(), server)
}
