//! The same configurations and the same seeded requests to nginx and to weir: equal status, headers and body.
//!
//! nginx is `$WEIR_NGINX`, or `nginx` on the path; without one nothing is compared, and the output says so.
//! `WEIR_SEED` replays a run, `WEIR_REQUESTS` sets how many requests each configuration gets.

mod answers;
mod requests;
mod sites;

use std::process::Command;

use weir_testkit::{Client, Dir, Server};

use crate::answers::Answers;
use crate::requests::Requests;

const WEIR: &str = env!("CARGO_BIN_EXE_weir");

/// The oracle's path and version, such as `1.22.1`.
fn oracle() -> Option<(String, String)> {
    let path = std::env::var("WEIR_NGINX").unwrap_or_else(|_| "nginx".to_owned());
    let said = Command::new(&path).arg("-v").output().ok()?;
    let text = String::from_utf8_lossy(&said.stderr).into_owned();
    let version = text.split("nginx/").nth(1)?.split_whitespace().next()?.to_owned();
    Some((path, version))
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

#[test]
fn weir_answers_as_nginx_does() {
    let Some((nginx, version)) = oracle() else {
        println!("not run: no nginx to compare with");
        return;
    };
    let (seed, each) = (number("WEIR_SEED", 1), number("WEIR_REQUESTS", 750));
    let mut differences = Vec::new();
    let mut total = 0;
    for (name, conf) in sites::ALL {
        let theirs = Server::start_in(sites::files(Dir::new()), &nginx, conf);
        let ours = Server::start_in(sites::files(Dir::new()), WEIR, conf);
        let mut requests = Requests::new(seed, name);
        for i in 0..each {
            let request = requests.next();
            let expected = ask(&theirs, &request);
            let got = ask(&ours, &request);
            total += 1;
            if let Some(difference) = expected.differs(&got) {
                differences.push(format!(
                    "{name}, request {i} of seed {seed}: {difference}\n{}\n-- nginx:\n{expected}\n-- weir:\n{got}\n",
                    String::from_utf8_lossy(&request).escape_debug()
                ));
            }
        }
    }
    println!("{total} requests compared with nginx {version}, {} differ", differences.len());
    // All of them at once would hide the first.
    for difference in differences.iter().take(8) {
        println!("{difference}");
    }
    assert!(differences.is_empty(), "{} of {total} answers differ", differences.len());
}

/// Sends one or more requests on a connection of their own and reads until the server closes it.
fn ask(server: &Server, request: &[u8]) -> Answers {
    let mut client = Client::connect(server.port());
    // A server that refuses a head closes before it has read all: that is an answer, too.
    let _ = client.try_send(request);
    Answers::read(&client.rest_bytes(), server)
}
