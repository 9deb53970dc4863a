//! What a client may send, and for how long it may wait.

use std::io::{Read, Write};
use std::thread;

use super::{Caller, mail};

#[test]
fn too_many_and_too_long_lines_are_the_end() {
    let s = mail(
        "",
        "",
        "imap_client_buffer 64; max_errors 3;
         server { listen 127.0.0.1:%%PORT1%%; protocol imap; }",
    );
    let mut caller = Caller::new(s.port_at(1));
    caller.hears();
    assert_eq!(caller.asks("a FETCH 1"), "a BAD invalid command");
    assert_eq!(caller.asks("*"), "* BAD invalid command");
    // It knows the command, which lacks something: that is no error to count.
    assert_eq!(caller.asks("b LOGIN x"), "b BAD invalid command");
    assert_eq!(caller.asks("c X"), "c BAD invalid command");
    assert_eq!(caller.hears_all(), "");
    let mut caller = Caller::new(s.port_at(1));
    caller.hears();
    caller.says(&format!("a LOGIN {}", "x".repeat(100)));
    assert!(caller.hears_all().starts_with("a BAD invalid command"));
    // A literal that is sent unasked has no known end, once its command is none.
    let mut caller = Caller::new(s.port_at(1));
    caller.hears();
    caller.says("a X {3+}\r\nb LOGIN c d\r\n");
    assert!(caller.hears_all().starts_with("a BAD invalid command"));
    s.wait_log("client sent too long command \"a LOGIN xxx", 1);
    s.wait_log("client sent too many invalid commands", 1);
}

#[test]
fn a_client_that_does_not_log_in_has_its_time() {
    let s = mail("", "", "timeout 200ms; server { listen 127.0.0.1:%%PORT1%%; protocol imap; }");
    let mut caller = Caller::new(s.port_at(1));
    caller.hears();
    assert_eq!(caller.hears_all(), "");
    s.wait_log("client timed out (110: Connection timed out) while in auth state", 1);
}

#[test]
fn a_client_that_sends_without_a_pause_has_no_longer() {
    let s = mail("", "", "timeout 500ms; server { listen 127.0.0.1:%%PORT1%%; protocol imap; }");
    let mut caller = Caller::new(s.port_at(1));
    caller.hears();
    let mut sends = caller.stream.try_clone().unwrap();
    let sender = thread::spawn(move || {
        let commands = b"a NOOP\r\n".repeat(2000);
        while sends.write_all(&commands).is_ok() {}
    });
    let mut heard = [0; 1 << 16];
    while caller.stream.read(&mut heard).is_ok_and(|n| n > 0) {}
    sender.join().unwrap();
    s.wait_log("client timed out (110: Connection timed out) while in auth state", 1);
}

#[test]
fn a_method_that_is_not_offered_is_refused_with_a_name_as_well() {
    let s = mail("", "", "server { listen 127.0.0.1:%%PORT1%%; protocol pop3; }");
    let mut caller = Caller::new(s.port_at(1));
    caller.hears();
    for command in ["AUTH EXTERNAL", "AUTH EXTERNAL dXNlcg==", "AUTH CRAM-MD5"] {
        assert_eq!(caller.asks(command), "-ERR invalid command", "{command}");
    }
}
