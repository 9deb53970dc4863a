//! Mail: clients log in by a server of HTTP, which says where each one leads. The clients here are bare sockets: what matters is
//! when a byte is sent.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, channel};

use weir_testkit::{Dir, PATIENCE, Server, certified, examples, listen};

#[path = "mail/clients.rs"]
mod clients;
#[path = "mail/limits.rs"]
mod limits;
#[path = "mail/smtp.rs"]
mod smtp;

const WEIR: &str = env!("CARGO_BIN_EXE_weir");

/// A mail server behind: it greets, answers each line as `answer` says, and ends after `QUIT` and `LOGOUT`.
struct Behind {
    port: u16,
    heard: Receiver<String>,
}

fn behind(greeting: &'static str, answer: fn(&str) -> String) -> Behind {
    let (tell, heard) = channel();
    let tell = Mutex::new(tell);
    let port = listen(move |stream| {
        let mut lines = BufReader::new(stream.try_clone().unwrap());
        let mut stream = stream;
        stream.write_all(greeting.as_bytes()).unwrap();
        let mut line = String::new();
        while lines.read_line(&mut line).is_ok_and(|n| n > 0) {
            let text = line.trim_end().to_owned();
            // The test may be over.
            let _ = tell.lock().unwrap().send(text.clone());
            if stream.write_all(answer(&text).as_bytes()).is_err() {
                return;
            }
            if text.ends_with("QUIT") || text.ends_with("LOGOUT") {
                return;
            }
            line.clear();
        }
    });
    Behind { port, heard }
}

impl Behind {
    /// The next line that it hears.
    fn hears(&self) -> String {
        self.heard.recv_timeout(PATIENCE).expect("a line at the server behind")
    }
}

fn imap_behind() -> Behind {
    behind("* OK behind\r\n", |line| match line.split_once(' ') {
        _ if line.ends_with('}') => "+ go\r\n".to_owned(),
        Some((tag, "SELECT INBOX")) => format!("* 7 EXISTS\r\n{tag} OK [READ-WRITE] done\r\n"),
        Some((tag, "NOOP" | "LOGOUT")) => format!("{tag} OK done\r\n"),
        // The password ends the log-in, whose tag is `a`.
        _ => "* CAPABILITY X\r\na OK logged in\r\n".to_owned(),
    })
}

fn pop3_behind() -> Behind {
    behind("+OK behind\r\n", |line| match line {
        "PASS wrong" => "-ERR [AUTH] not here\r\n".to_owned(),
        "STAT" => "+OK 3 300\r\n".to_owned(),
        line => format!("+OK {line}\r\n"),
    })
}

fn smtp_behind() -> Behind {
    behind("220 behind\r\n", |line| {
        match line.get(..4).unwrap_or(line).to_ascii_uppercase().as_str() {
            "EHLO" => "250-behind\r\n250 XCLIENT NAME ADDR LOGIN\r\n".to_owned(),
            "XCLI" => "220 again\r\n".to_owned(),
            "PROX" => String::new(),
            "AUTH" => "235 in\r\n".to_owned(),
            "DATA" => "354 go on\r\n".to_owned(),
            "RCPT" if line.contains("nobody") => "550 no such user\r\n".to_owned(),
            "SUBJ" | "BODY" | "" => String::new(),
            _ => "250 ok\r\n".to_owned(),
        }
    })
}

/// A server with these lines in its `mail` block. Clients are looked up at its own server of HTTP, by these locations.
fn mail(main: &str, http: &str, lines: &str) -> Server {
    let conf = format!(
        "error_log %%DIR%%/error.log info; {main} events {{ }}
         http {{
            log_format asked '$request_uri $http_auth_method [$http_auth_user] [$http_auth_pass] $http_auth_protocol '
                             '$http_auth_login_attempt $http_client_ip $http_client_host $http_auth_ssl $http_auth_ssl_verify';
            log_format told '[$http_x_key] [$http_auth_ssl_cert]';
            server {{ listen 127.0.0.1:%%PORT%%; access_log %%DIR%%/asked asked; {http} }}
         }}
         mail {{ auth_http 127.0.0.1:%%PORT%%/auth; ssl_certificate chain.pem; ssl_certificate_key leaf.key; {lines} }}"
    );
    Server::start_in(certified(), WEIR, &conf)
}

/// A location that lets all clients in and sends them there.
fn leads(port: u16, more: &str) -> String {
    format!(
        "location = /auth {{ add_header Auth-Status OK; add_header Auth-Server 127.0.0.1;
         add_header Auth-Port {port}; {more} return 204; }}"
    )
}

/// A client that sends lines and hears lines.
struct Caller {
    stream: TcpStream,
    lines: BufReader<TcpStream>,
}

impl Caller {
    fn new(port: u16) -> Caller {
        let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let lines = BufReader::new(stream.try_clone().unwrap());
        Caller { stream, lines }
    }

    fn says(&mut self, text: &str) {
        self.stream.write_all(text.as_bytes()).unwrap();
    }

    /// The next line; empty at the end.
    fn hears(&mut self) -> String {
        let mut line = String::new();
        let _ = self.lines.read_line(&mut line);
        line.trim_end().to_owned()
    }

    fn asks(&mut self, text: &str) -> String {
        self.says(&format!("{text}\r\n"));
        self.hears()
    }

    /// All lines up to the end.
    fn hears_all(&mut self) -> String {
        let mut all = Vec::new();
        let _ = self.lines.read_to_end(&mut all);
        String::from_utf8(all).unwrap()
    }
}

#[test]
fn a_client_of_imap_is_logged_in_behind() {
    let server = imap_behind();
    let s = mail(
        "",
        &leads(server.port, "add_header Auth-User other; add_header Auth-Pass thing;"),
        "server { listen 127.0.0.1:%%PORT1%%; protocol imap; starttls on; }",
    );
    let mut caller = Caller::new(s.port_at(1));
    assert_eq!(caller.hears(), "* OK IMAP4 ready");
    assert_eq!(
        caller.asks("a CAPABILITY"),
        "* CAPABILITY IMAP4 IMAP4rev1 UIDPLUS AUTH=PLAIN STARTTLS"
    );
    assert_eq!(caller.hears(), "a OK completed");
    // A literal needs leave, and may hold anything.
    assert_eq!(caller.asks("a LOGIN {4}"), "+ OK");
    assert_eq!(caller.asks("u\r\nr \"pa ss\""), "* CAPABILITY X");
    assert_eq!(caller.hears(), "a OK logged in");
    assert_eq!(server.hears(), "a LOGIN {5}");
    assert_eq!(server.hears(), "other {5}");
    assert_eq!(server.hears(), "thing");
    assert_eq!(caller.asks("b SELECT INBOX"), "* 7 EXISTS");
    s.wait_file("asked", "/auth plain [u%0D%0Ar] [pa%20ss] imap 1 127.0.0.1 - - -\n", 1);
    drop(caller);
    s.wait_log("proxied session done, client: 127.0.0.1", 1);
}

/// Commands behind STARTTLS, in the same packet, are not of the client that TLS vouches for (CVE-2011-0411).
#[test]
fn what_was_sent_before_tls_does_not_count() {
    let server = smtp_behind();
    let s = mail(
        "",
        &leads(server.port, ""),
        "server { listen 127.0.0.1:%%PORT1%%; protocol smtp; starttls on; smtp_auth none; }",
    );
    let mut caller = Caller::new(s.port_at(1));
    caller.hears();
    assert!(caller.asks("EHLO me").starts_with("250-"));
    assert_eq!(caller.hears(), "250 STARTTLS");
    assert_eq!(caller.asks("MAIL FROM:<a>"), "250 2.0.0 OK");
    caller.says("STARTTLS\r\nRCPT TO:<b>\r\n");
    assert_eq!(caller.hears(), "220 2.0.0 Start TLS");
    // The handshake is next, and this is none.
    caller.says("NOOP\r\n");
    caller.hears_all();
    s.wait_log("using starttls", 1);
    assert!(server.heard.try_recv().is_err());
    assert_eq!(s.dir().read("asked"), "");
}

#[test]
fn a_refused_client_may_try_again_after_a_pause() {
    let server = pop3_behind();
    let http = format!(
        "location = /auth {{ if ($http_auth_user = slow) {{ rewrite ^ /slow last; }} if ($http_auth_user = no) {{ rewrite ^ /no last; }}
            rewrite ^ /yes; }}
         location = /slow {{ add_header Auth-Status 'Not so fast'; add_header Auth-Wait 1; return 204; }}
         location = /no {{ add_header Auth-Status 'No such user'; add_header Auth-Error-Code '454 4.7.0'; return 204; }}
         {}",
        leads(server.port, "").replace("/auth", "/yes")
    );
    let s = mail(
        "",
        &http,
        "server { listen 127.0.0.1:%%PORT1%%; protocol pop3; }
         server { listen 127.0.0.1:%%PORT2%%; protocol imap; }
         server { listen 127.0.0.1:%%PORT3%%; protocol smtp; }",
    );
    let mut caller = Caller::new(s.port_at(1));
    caller.hears();
    assert_eq!(caller.asks("USER slow"), "+OK");
    assert_eq!(caller.asks("PASS x"), "-ERR Not so fast");
    assert_eq!(caller.asks("USER user"), "+OK");
    assert_eq!(caller.asks("PASS secret"), "+OK PASS secret");
    s.wait_file("asked", " plain [user] [secret] pop3 2 ", 1);
    // Without a pause it is the end.
    let mut caller = Caller::new(s.port_at(2));
    caller.hears();
    assert_eq!(caller.asks("a LOGIN no x"), "a NO No such user");
    assert_eq!(caller.hears_all(), "");
    let mut caller = Caller::new(s.port_at(3));
    caller.hears();
    // `\0no\0x`
    assert_eq!(caller.asks("AUTH PLAIN AG5vAHg="), "454 4.7.0 No such user");
    assert_eq!(caller.hears_all(), "");
}

#[test]
fn the_client_is_told_who_failed() {
    let server = pop3_behind();
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let http = format!(
        "{} location = /nowhere {{ add_header Auth-Status OK; return 204; }} {}",
        leads(server.port, ""),
        leads(closed, "").replace("/auth", "/dead"),
    );
    let at = |n: usize, lines: &str| {
        format!("server {{ listen 127.0.0.1:%%PORT{n}%%; protocol pop3; {lines} }}")
    };
    let servers = [
        at(1, ""),
        at(2, "proxy_pass_error_message on;"),
        at(3, "auth_http 127.0.0.1:%%PORT%%/nowhere;"),
        at(4, "auth_http 127.0.0.1:%%PORT%%/dead;"),
        at(5, &format!("auth_http 127.0.0.1:{closed};")),
    ];
    let s = mail("", &http, &servers.concat());
    let said = |n: usize, login: &str| {
        let mut caller = Caller::new(s.port_at(n));
        caller.hears();
        caller.says(login);
        caller.hears_all()
    };
    const WRONG: &str = "AUTH PLAIN AHVzZXIAd3Jvbmc=\r\n";
    const FAILED: &str = "-ERR internal server error\r\n";
    assert_eq!(said(1, WRONG), FAILED);
    assert_eq!(said(2, WRONG), "-ERR [AUTH] not here\r\n");
    s.wait_log("upstream sent invalid response: \"-ERR [AUTH] not here\" while reading response from upstream", 2);
    assert_eq!(said(3, WRONG), FAILED);
    s.wait_log("did not send server or port while in http auth state", 1);
    assert_eq!(said(4, WRONG), FAILED);
    s.wait_log("connect() failed (111: Connection refused) while connecting to upstream", 1);
    assert_eq!(said(5, WRONG), FAILED);
    s.wait_log("connect() failed (111: Connection refused) while in http auth state", 1);
    // `\0u\r\nDELE 1\0x`: a second command, if it were sent.
    assert_eq!(said(1, "AUTH PLAIN AHUNCkRFTEUgMQB4\r\n"), FAILED);
    s.wait_log("user name or password has a character that upstream cannot be sent", 1);
    assert!(!server.heard.try_iter().any(|line| line.contains("DELE")));
}

#[test]
fn clients_are_told_what_servers_can_do() {
    let s = mail(
        "",
        "",
        "imap_capabilities IMAP4rev1; imap_capabilities IDLE; pop3_capabilities TOP USER; imap_auth login cram-md5;
         server { listen 127.0.0.1:%%PORT1%%; protocol imap; }
         server { listen 127.0.0.1:%%PORT2%%; protocol pop3; starttls only; pop3_auth external; }
         server { listen 127.0.0.1:%%PORT3%%; protocol imap; imap_capabilities X; starttls only; }",
    );
    let ask = |n: usize, text: &str| {
        let mut caller = Caller::new(s.port_at(n));
        caller.hears();
        caller.says(text);
        caller.hears_all()
    };
    assert_eq!(
        ask(1, "a CAPABILITY\r\nb LOGOUT\r\n"),
        "* CAPABILITY IMAP4rev1 IDLE AUTH=LOGIN AUTH=CRAM-MD5\r\na OK completed\r\n* BYE\r\nb OK completed\r\n"
    );
    assert_eq!(
        ask(2, "CAPA\r\nAUTH\r\nQUIT\r\n"),
        "+OK Capability list follows\r\nTOP\r\nSTLS\r\n.\r\n-ERR invalid command\r\n+OK\r\n"
    );
    assert_eq!(
        ask(3, "a CAPABILITY\r\nb LOGIN x y\r\nc LOGOUT\r\n"),
        "* CAPABILITY X STARTTLS LOGINDISABLED\r\na OK completed\r\nb BAD invalid command\r\n* BYE\r\nc OK completed\r\n"
    );
}

#[test]
fn settings_of_the_way_to_servers_count() {
    let server = smtp_behind();
    let talks = behind(
        "* OK behind, with a very long line about itself, of which a half is too much\r\n",
        |_| String::new(),
    );
    let silent = listen(|mut stream| drop(stream.read_to_end(&mut Vec::new())));
    let http = format!(
        "{} {} location = /told {{ access_log %%DIR%%/told told; add_header Auth-Status OK; return 204; }}",
        leads(server.port, ""),
        leads(talks.port, "").replace("/auth", "/talks"),
    );
    let servers = format!(
        "ssl_verify_client optional_no_ca; smtp_client_buffer 100;
         server {{ listen 127.0.0.1:%%PORT1%%; protocol smtp; proxy_protocol on; xclient off; proxy_smtp_auth on;
                   proxy_timeout 200ms; }}
         server {{ listen 127.0.0.1:%%PORT2%%; protocol imap; proxy_buffer 64; auth_http 127.0.0.1:%%PORT%%/talks; }}
         server {{ listen 127.0.0.1:%%PORT3%%; protocol imap; auth_http 127.0.0.1:{silent}; auth_http_timeout 100ms; }}
         server {{ listen 127.0.0.1:%%PORT4%% ssl; protocol imap; auth_http 127.0.0.1:%%PORT%%/told;
                   auth_http_header X-Key 'a b'; auth_http_pass_client_cert on; }}"
    );
    let s = mail("", &http, &servers);
    let mut caller = Caller::new(s.port_at(1));
    caller.hears();
    // `\0u\0p`
    assert_eq!(caller.asks("AUTH PLAIN AHUAcA=="), "235 2.0.0 OK");
    assert!(server.hears().starts_with("PROXY TCP4 127.0.0.1 127.0.0.1 "));
    assert!(server.hears().starts_with("HELO "));
    assert_eq!(server.hears(), "AUTH PLAIN AHUAcA==");
    assert_eq!(caller.hears_all(), "");
    s.wait_log("client timed out (110: Connection timed out) while proxying", 1);
    let mut caller = Caller::new(s.port_at(1));
    caller.hears();
    caller.says(&"x".repeat(200));
    assert!(caller.hears_all().starts_with("500 5.5.1 Invalid command"));
    for (n, text) in [
        (2, "upstream sent too long response line"),
        (3, "timed out (110: Connection timed out) while in http auth state"),
    ] {
        let mut caller = Caller::new(s.port_at(n));
        caller.hears();
        caller.says("a LOGIN u p\r\n");
        assert_eq!(caller.hears_all(), "* BAD internal server error\r\n");
        s.wait_log(text, 1);
    }
    let shown = ["-quiet", "-ign_eof", "-cert", "client.pem", "-key", "client.key"];
    weir_testkit::s_client(s.dir().path(), s.port_at(4), &shown, "a LOGIN u p\r\n")
        .expect("openssl");
    s.wait_file("told", "[a b] [-----BEGIN%20CERTIFICATE-----%0A", 1);
}

#[test]
fn sessions_outlive_a_reload_until_their_time_is_over() {
    let server = imap_behind();
    let s = mail(
        "worker_shutdown_timeout 500ms;",
        &leads(server.port, ""),
        "server { listen 127.0.0.1:%%PORT1%%; protocol imap; }",
    );
    let log_in = || {
        let mut caller = Caller::new(s.port_at(1));
        caller.hears();
        caller.asks("a LOGIN user pass");
        assert_eq!(caller.hears(), "a OK logged in");
        caller
    };
    let mut caller = log_in();
    s.reload();
    assert_eq!(log_in().asks("b NOOP"), "b OK done");
    assert_eq!(caller.hears_all(), "");
    s.wait_log("shutdown timeout while proxying, client: 127.0.0.1", 1);
}

#[test]
fn another_listener_hands_connections_over() {
    let s = mail(
        "stream { server { listen 127.0.0.1:%%PORT2%%; pass 127.0.0.1:%%PORT1%%; } }",
        "",
        "server { listen 127.0.0.1:%%PORT1%%; protocol imap; }",
    );
    assert_eq!(Caller::new(s.port_at(2)).hears(), "* OK IMAP4 ready");
}

#[test]
fn what_is_wrong_is_told_with_its_line() {
    let said = |lines: &str| {
        let dir = Dir::new();
        let conf = dir.write("conf", format!("events {{ }}\nmail {{\n{lines}\n}}"));
        let out = Command::new(WEIR).args(["-t", "-e", "stderr", "-c"]).arg(conf).output().unwrap();
        assert!(!out.status.success(), "{lines}");
        String::from_utf8_lossy(&out.stderr).into_owned()
    };
    for (lines, text) in [
        ("server { listen 143; }", "no \"auth_http\" is defined for server"),
        ("auth_http a; server { protocol imap; }", "no \"listen\" is defined for server"),
        ("auth_http a; server { listen 4143; }", "unknown mail protocol for server"),
        ("server { protocol nntp; }", "unknown protocol \"nntp\""),
        ("auth_http 127.0.0.1:x;", "invalid port in auth_http \"127.0.0.1:x\""),
        (
            "auth_http 127.0.0.1; server { listen 143; } server { listen 143; }",
            "duplicate \"0.0.0.0:143\" address and port pair",
        ),
        (
            "auth_http 127.0.0.1; server { listen 993 ssl; }",
            "no \"ssl_certificate\" is defined for the \"listen ... ssl\" directive",
        ),
        (
            "auth_http 127.0.0.1; starttls on; server { listen 143; }",
            "no \"ssl_certificate\" is defined for the \"starttls\" directive",
        ),
        ("server { listen 143 reuseport; }", "invalid parameter \"reuseport\""),
    ] {
        let said = said(lines);
        assert!(said.contains(text) && said.contains("conf:3"), "{lines}: {said}");
    }
}

#[test]
fn authorities_are_read_only_where_clients_are_verified() {
    let dir = certified();
    let tests = |verify: &str| {
        let conf = format!(
            "events {{ }} mail {{ auth_http 127.0.0.1:1; server {{ listen 127.0.0.1:1 ssl;
             protocol imap; ssl_certificate chain.pem; ssl_certificate_key leaf.key; {verify}
             ssl_trusted_certificate none.pem; ssl_crl none.crl; }} }}"
        );
        let conf = dir.write("conf", conf);
        let out = Command::new(WEIR).args(["-t", "-e", "stderr", "-c"]).arg(conf).output().unwrap();
        (out.status.success(), String::from_utf8_lossy(&out.stderr).into_owned())
    };
    assert!(tests("").0, "{}", tests("").1);
    let (starts, said) = tests("ssl_verify_client on;");
    assert!(!starts && said.contains("none.pem"), "{said}");
}

#[test]
fn the_example_of_the_page_works() {
    let (imap, pop3, smtp) = (imap_behind(), pop3_behind(), smtp_behind());
    let example = examples(include_str!("../docs/mail.md")).next().unwrap();
    let mut text = example.to_owned();
    for (from, to) in [
        ("127.0.0.1:8143", format!("127.0.0.1:{}", imap.port)),
        ("127.0.0.1:8110", format!("127.0.0.1:{}", pop3.port)),
        ("127.0.0.1:8025", format!("127.0.0.1:{}", smtp.port)),
        ("8143", imap.port.to_string()),
        ("8110", pop3.port.to_string()),
        ("8025", smtp.port.to_string()),
        ("127.0.0.1:9000", "127.0.0.1:%%PORT%%".to_owned()),
        ("listen 143;", "listen 127.0.0.1:%%PORT1%%;".to_owned()),
        ("listen 993 ssl;", "listen 127.0.0.1:%%PORT2%% ssl;".to_owned()),
        ("listen 995 ssl;", "listen 127.0.0.1:%%PORT3%% ssl;".to_owned()),
        ("listen 587;", "listen 127.0.0.1:%%PORT4%%;".to_owned()),
        ("cert.pem", "chain.pem".to_owned()),
        ("cert.key", "leaf.key".to_owned()),
    ] {
        assert!(
            text.contains(from) || from.starts_with('8') || from.starts_with("127.0.0.1:8"),
            "{from}"
        );
        text = text.replace(from, &to);
    }
    let s = Server::start_in(certified(), WEIR, &text);
    let log_in = |port: usize, text: &str| {
        let args = ["-quiet", "-ign_eof"];
        weir_testkit::s_client(s.dir().path(), s.port_at(port), &args, text).expect("openssl")
    };
    let said = log_in(2, "a LOGIN anna@example.org secret\r\nb LOGOUT\r\n");
    assert!(said.contains("a OK logged in"), "{said}");
    let said = log_in(3, "USER anna@example.org\r\nPASS secret\r\nQUIT\r\n");
    assert!(said.contains("+OK PASS secret"), "{said}");
    let said = log_in(2, "a LOGIN eve@example.org secret\r\n");
    assert!(said.contains("a NO Invalid login or password"), "{said}");
    let mut caller = Caller::new(s.port_at(1));
    caller.hears();
    assert_eq!(caller.asks("a LOGIN anna@example.org secret"), "a BAD invalid command");
    assert!(Caller::new(s.port_at(4)).hears().ends_with(" ESMTP ready"));
}
