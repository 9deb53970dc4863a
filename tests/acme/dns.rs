//! Proofs by DNS, from the authority and a name server of the test's own.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use rustix::process::{Pid, Signal, kill_process};
use weir_testkit::{Dir, Server, ask_until, children, examples};

use crate::authority::{Ask, Authority, Reaction};
use crate::names::{KEY, NameServer};
use crate::{PAGE, USUAL, WEIR, conf, wait_secure};

/// A program for `dns_hook` that keeps records in a file, and that file.
pub fn hook(dir: &Dir) -> (PathBuf, PathBuf) {
    let file = dir.write("records", "");
    let shown = file.display();
    let script = format!(
        "#!/bin/sh\ncase $1 in\npresent) echo \"$2 $3\" >> {shown} ;;\n\
         cleanup) grep -vxF \"$2 $3\" {shown} > {shown}.new; mv {shown}.new {shown} ;;\nesac\n"
    );
    let program = dir.write("hook", script);
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    (program, file)
}

/// An authority that looks for records at a name server for `example.org`.
fn with_names() -> (Authority, NameServer) {
    let (authority, names) = (Authority::new(), NameServer::new("example.org"));
    authority.looks_at(&names);
    (authority, names)
}

#[test]
fn the_page_s_wildcard_is_proved_by_a_hook() {
    let (authority, names) = with_names();
    let dir = Dir::new();
    let (hook, records) = hook(&dir);
    names.reads(records.clone());
    let example = examples(PAGE).find(|example| example.contains("dns_hook")).unwrap();
    let mut text = format!("user root; {example}");
    for (shown, own) in [
        ("uri https://acme-v02.api.letsencrypt.org/directory;", authority.lines(&dir)),
        ("\n        accept_terms_of_service;", String::new()),
        ("/etc/weir/dns-hook", hook.display().to_string()),
        ("dns_wait 120s;", format!("dns_wait 10s {};", names.address())),
        ("listen 443 ssl;", "listen 127.0.0.1:%%PORT1%% ssl;".to_owned()),
    ] {
        assert!(text.contains(shown), "{shown}");
        text = text.replace(shown, &own);
    }
    let server = Server::start_in(dir, WEIR, &text);
    wait_secure(&authority, &server, "example.org");
    wait_secure(&authority, &server, "any.example.org");
    assert_eq!(std::fs::read_to_string(records).unwrap(), "", "nothing is left");
}

#[test]
fn a_wildcard_is_proved_by_signed_updates() {
    let (authority, names) = with_names();
    names.alias("_acme-challenge.www.b.example.org", "proofs.example.org");
    // The record is not there at once.
    names.is_slow(3);
    let dir = Dir::new();
    let key = dir.write("tsig.key", KEY);
    let (shown, key) = (names.address(), key.display());
    let lines = format!(
        "challenge dns-01; dns_update {shown} key={key}; dns_wait 10s {shown}; dns_resolver {shown}; {}",
        authority.lines(&dir)
    );
    // The wildcard covers the last name, for which nothing is to be proved.
    let all = "example.org *.example.org www.b.example.org www.example.org";
    let conf = conf(&lines, all, USUAL);
    let server = Server::start_in(dir, WEIR, &conf);
    wait_secure(&authority, &server, "example.org");
    wait_secure(&authority, &server, "any.example.org");
    wait_secure(&authority, &server, "www.b.example.org");
    assert_eq!(names.counts(), (0, 3), "records that are left, and that there were");
}

#[test]
fn an_update_with_a_wrong_key_is_told_with_the_server_s_answer() {
    let (authority, names) = with_names();
    let dir = Dir::new();
    let key = dir.write("tsig.key", KEY.replace("c2VjcmV0", "QUJDREVG"));
    let (shown, key) = (names.address(), key.display());
    let lines =
        format!("challenge dns-01; dns_update {shown} key={key}; {}", authority.lines(&dir));
    let server = Server::start_in(dir, WEIR, &conf(&lines, "*.example.org", USUAL));
    let why = format!(
        "no certificate for \"*.example.org\": the name server {shown} does not publish \"_acme-challenge.example.org\": "
    );
    server.wait_log(&why, 1);
    // The authority was asked for nothing that it counts as a failure.
    assert_eq!((authority.asked(Ask::NewOrder), authority.asked(Ask::Challenge)), (1, 0));
}

#[test]
fn records_of_a_killed_worker_are_removed_by_the_next_one() {
    let (authority, names) = with_names();
    let dir = Dir::new();
    let key = dir.write("tsig.key", KEY);
    let (shown, key) = (names.address(), key.display());
    let lines = format!(
        "challenge dns-01; dns_update {shown} key={key}; dns_wait 10s {shown}; {}",
        authority.lines(&dir)
    );
    let pid_file = dir.file("nginx.pid");
    let mut kills = 1;
    authority.reacts(move |ask| {
        if ask != Ask::Challenge || kills == 0 {
            return Reaction::Serve;
        }
        kills -= 1;
        let master: i32 = std::fs::read_to_string(&pid_file).unwrap().trim().parse().unwrap();
        for worker in children(master) {
            let _ = kill_process(Pid::from_raw(worker).unwrap(), Signal::KILL);
        }
        Reaction::Close
    });
    let server = Server::start_in(dir, WEIR, &conf(&lines, "*.example.org", USUAL));
    wait_secure(&authority, &server, "any.example.org");
    assert!(ask_until(|| names.counts().0 == 0), "{:?}", names.counts());
    assert!(authority.asked(Ask::NewOrder) <= 2);
}
