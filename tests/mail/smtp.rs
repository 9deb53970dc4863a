//! What only SMTP has: clients that need not log in, names of clients, greetings that wait.

use weir_testkit::{NameRecord, NameReply, name_server};

use super::{Caller, leads, mail, smtp_behind};

/// As many programs do that send mail through a relay of their network.
#[test]
fn clients_of_smtp_need_not_log_in_where_they_may() {
    let server = smtp_behind();
    let s = mail(
        "",
        &leads(server.port, ""),
        "server { listen 127.0.0.1:%%PORT1%%; protocol smtp; smtp_auth none; xclient off; server_name m; }
         server { listen 127.0.0.1:%%PORT2%%; protocol smtp; }",
    );
    let mut caller = Caller::new(s.port_at(1));
    assert_eq!(caller.hears(), "220 m ESMTP ready");
    assert_eq!(caller.asks("HELO me"), "250 m");
    assert_eq!(caller.asks("RCPT TO:<x>"), "503 5.5.1 Bad sequence of commands");
    // All at once: what follows the recipient is for the server behind.
    caller.says("MAIL FROM:<a>\r\nRCPT TO:<nobody>\r\nRCPT TO:<b>\r\n");
    assert_eq!(caller.hears(), "250 2.0.0 OK");
    assert_eq!(caller.hears(), "550 no such user");
    assert_eq!(caller.hears(), "250 ok");
    let heard: Vec<String> = (0..4).map(|_| server.hears()).collect();
    assert_eq!(heard, ["HELO m", "MAIL FROM:<a>", "RCPT TO:<nobody>", "RCPT TO:<b>"]);
    let mut caller = Caller::new(s.port_at(2));
    caller.hears();
    assert_eq!(caller.asks("MAIL FROM:<a>"), "530 5.7.1 Authentication required");
    caller.says("MAIL FROM:<a>\r\nNOOP\r\n");
    assert_eq!(caller.hears(), "530 5.7.1 Authentication required");
    assert_eq!(caller.hears(), "250 2.0.0 OK");
}

#[test]
fn a_client_of_smtp_has_its_name_if_it_leads_back() {
    let server = smtp_behind();
    let names = name_server(|name| match name {
        "1.0.0.127.in-addr.arpa" => NameReply::Records(9, vec![NameRecord::Name("client.example")]),
        "2.0.0.127.in-addr.arpa" => NameReply::Records(9, vec![NameRecord::Name("other.example")]),
        "client.example" => NameReply::Records(9, vec![NameRecord::Address([127, 0, 0, 1].into())]),
        "other.example" => NameReply::Records(9, vec![NameRecord::Address([192, 0, 2, 1].into())]),
        _ => NameReply::NoSuchName,
    });
    let s = mail(
        "",
        &leads(server.port, ""),
        &format!(
            "resolver 127.0.0.1:{names} ipv6=off;
             server {{ listen 127.0.0.1:%%PORT1%% proxy_protocol; set_real_ip_from 127.0.0.1; protocol smtp; smtp_auth none; }}"
        ),
    );
    for (address, name) in [
        ("127.0.0.1", "client.example"),
        ("127.0.0.2", "[UNAVAILABLE]"),
        ("127.0.0.3", "[UNAVAILABLE]"),
    ] {
        let mut caller = Caller::new(s.port_at(1));
        caller.says(&format!("PROXY TCP4 {address} 127.0.0.1 4711 25\r\n"));
        assert!(caller.hears().starts_with("220 "));
        caller.asks("MAIL FROM:<a>");
        assert_eq!(caller.asks("RCPT TO:<b>"), "250 ok");
        assert!(server.hears().starts_with("EHLO "));
        assert_eq!(server.hears(), format!("XCLIENT ADDR={address} NAME={name}"));
        assert_eq!([server.hears(), server.hears()], ["MAIL FROM:<a>", "RCPT TO:<b>"]);
        s.wait_file("asked", &format!(" smtp 1 {address} {name} "), 1);
    }
    s.wait_log("127.0.0.3 could not be resolved (3: Host not found)", 1);
}

#[test]
fn a_client_of_smtp_waits_for_the_greeting() {
    let s = mail(
        "",
        "",
        "server { listen 127.0.0.1:%%PORT1%%; protocol smtp; smtp_greeting_delay 300ms; }
         server { listen 127.0.0.1:%%PORT2%%; protocol smtp; smtp_greeting_delay 1h; }",
    );
    assert!(Caller::new(s.port_at(1)).hears().starts_with("220 "));
    let mut caller = Caller::new(s.port_at(2));
    assert_eq!(caller.asks("EHLO me"), "503 5.5.0 Improper use of SMTP command pipelining");
    s.wait_log("client was rejected before greeting: \"EHLO me__\"", 1);
}
