//! Clients in wide use: Python's, curl and OpenSSL.

use std::io::{BufRead, BufReader, Write};
use std::process::Command;

use weir_testkit::{Server, listen};

use super::{imap_behind, leads, mail, pop3_behind, smtp_behind};

/// What the client of Python prints.
fn python(s: &Server, mode: &str, port: u16) -> String {
    let client = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/mail/client.py");
    let root = s.dir().path().join("root.pem");
    let out = Command::new("timeout")
        .args(["60", "python3", client, mode, &port.to_string()])
        .arg(root)
        .output()
        .expect("python3");
    let said = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(out.status.success(), "{said}{}{}", String::from_utf8_lossy(&out.stderr), s.log());
    said
}

/// Python's client of IMAP makes its tags itself.
fn imap_with_any_tag() -> u16 {
    listen(|stream| {
        let mut lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
        let mut stream = stream;
        let mut say = |text: String| stream.write_all(text.as_bytes()).unwrap();
        say("* OK behind\r\n".to_owned());
        let login = lines.next().unwrap();
        let tag = login.split(' ').next().unwrap().to_owned();
        say("+ go\r\n".to_owned());
        let name = lines.next().unwrap();
        say("+ go\r\n".to_owned());
        let password = lines.next().unwrap();
        say(format!("{tag} OK {name}{password}\r\n"));
        for line in lines {
            let tag = line.split(' ').next().unwrap();
            say(format!("* 7 EXISTS\r\n{tag} OK done\r\n"));
        }
    })
}

#[test]
fn python_reads_mail_by_imap_over_starttls() {
    let s = mail(
        "",
        &leads(imap_with_any_tag(), ""),
        "server { listen 127.0.0.1:%%PORT1%%; protocol imap; starttls only; }",
    );
    let said = python(&s, "imap", s.port_at(1));
    assert!(said.contains("user {6}pa\"ss\\") && said.contains("'OK', [b'7']"), "{said}");
    s.wait_file("asked", " plain [user] [pa\\x22ss\\x5C] imap 1 127.0.0.1 - on -\n", 1);
}

#[test]
fn python_reads_mail_by_pop3_with_a_digest() {
    let server = pop3_behind();
    let s = mail(
        "",
        &leads(server.port, "add_header Auth-Pass secret;"),
        "server { listen 127.0.0.1:%%PORT1%%; protocol pop3; pop3_auth apop; server_name mail.example; }",
    );
    let said = python(&s, "pop3", s.port_at(1));
    assert!(
        said.contains("(3, 300)") && said.contains("'TOP'") && !said.contains("PLAIN"),
        "{said}"
    );
    assert_eq!([server.hears(), server.hears()], ["USER user", "PASS secret"]);
    s.wait_file("asked", " apop [user] [", 1);
}

#[test]
fn python_sends_mail_over_starttls() {
    let server = smtp_behind();
    let s = mail(
        "",
        &leads(server.port, ""),
        "server { listen 127.0.0.1:%%PORT1%%; protocol smtp; starttls only; server_name mail.example;
                  smtp_capabilities PIPELINING \"SIZE 1000\"; }",
    );
    assert_eq!(python(&s, "smtp", s.port_at(1)), "{}\n");
    let heard: Vec<String> = (0..6).map(|_| server.hears()).collect();
    assert_eq!(heard[0], "EHLO mail.example");
    assert_eq!(heard[1], "XCLIENT ADDR=127.0.0.1 LOGIN=us+3Der NAME=[UNAVAILABLE]");
    assert_eq!(heard[2], "EHLO client.example");
    assert!(heard[3].starts_with("mail FROM:<a@example.org>"), "{heard:?}");
    assert_eq!(&heard[4..], ["rcpt TO:<b@example.org>", "data"].map(String::from));
    s.wait_file("asked", " plain [us=er] [secret] smtp 1 127.0.0.1 [UNAVAILABLE] on -\n", 1);
}

#[test]
fn curl_logs_in_by_each_method() {
    let server = pop3_behind();
    let s = mail(
        "",
        &leads(server.port, "add_header Auth-User user; add_header Auth-Pass secret;"),
        "server { listen 127.0.0.1:%%PORT1%%; protocol pop3; pop3_auth plain cram-md5 external; }",
    );
    for method in ["PLAIN", "LOGIN", "CRAM-MD5", "EXTERNAL"] {
        let url = format!("pop3://127.0.0.1:{}/1", s.port_at(1));
        let login = format!("AUTH={method}");
        // A certificate needs no password.
        let user = if method == "EXTERNAL" { "user:" } else { "user:secret" };
        let args = ["-s", "-m", "20", "-u", user, "--login-options", &login, "-X", "STAT"];
        let out = Command::new("curl").args(args).args(["-l", &url]).output().expect("curl");
        assert!(out.status.success(), "{method}: {out:?} {}", s.log());
        let heard: Vec<String> = (0..4).map(|_| server.hears()).collect();
        assert_eq!(heard, ["USER user", "PASS secret", "STAT 1", "QUIT"], "{method}");
    }
    for method in ["plain", "cram-md5", "external"] {
        s.wait_file("asked", &format!(" {method} [user] ["), 1);
    }
}

#[test]
fn a_client_must_show_its_certificate_where_it_must() {
    let server = imap_behind();
    let s = mail(
        "",
        &leads(server.port, ""),
        "ssl_verify_client on; ssl_client_certificate root.pem;
         server { listen 127.0.0.1:%%PORT1%% ssl; protocol imap; }",
    );
    let openssl = |args: &[&str], text: &str| {
        weir_testkit::s_client(s.dir().path(), s.port_at(1), args, text).expect("openssl")
    };
    let said = openssl(&["-quiet", "-ign_eof"], "");
    assert!(said.contains("* BYE No required SSL certificate"), "{said}");
    s.wait_log("client sent no required SSL certificate while SSL handshaking", 1);
    let shown =
        ["-quiet", "-ign_eof", "-cert", "client.pem", "-key", "client.key", "-alpn", "imap"];
    let said = openssl(&shown, "a LOGIN user pass\r\nb LOGOUT\r\n");
    assert!(said.contains("a OK logged in"), "{said}{}", s.log());
    s.wait_file("asked", " [user] [pass] imap 1 127.0.0.1 - on SUCCESS\n", 1);
    // ALPN that names another protocol ends the handshake (CVE-2021-3618).
    let said = openssl(&["-alpn", "http/1.1"], "");
    assert!(said.contains("no application protocol"), "{said}");
}
