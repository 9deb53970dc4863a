//! TLS to servers.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};

use weir_testkit::{Server, certified, listen};

use super::{GET, NAME, WEIR, conf_beside, connect, programs, said};

/// `http` with TLS, as it sees its clients.
const ORIGIN: &str = "server { listen 127.0.0.1:%%PORT%% ssl; server_name www.example.org;
    ssl_verify_client optional; ssl_client_certificate root.pem; ssl_session_cache shared:o:1m;
    location / { return 200 '[answer $ssl_server_name $ssl_session_reused $ssl_alpn_protocol $ssl_client_verify]'; } }";

/// Asks a port that needs no TLS. A client without an answer may find the connection reset.
fn ask(s: &Server, port: usize) -> String {
    let (mut client, mut all) = (connect(s.port_at(port)), Vec::new());
    let _ = client.write_all(GET).and_then(|()| client.read_to_end(&mut all));
    String::from_utf8_lossy(&all).into_owned()
}

#[test]
fn servers_are_spoken_to_with_tls() {
    let to = "proxy_pass 127.0.0.1:%%PORT%%; proxy_ssl on;";
    let stream = format!(
        "proxy_ssl_trusted_certificate root.pem;
         map $server_port $name {{ default www.example.org; }}
         map $server_port $client {{ default client; }}
         server {{ listen 127.0.0.1:%%PORT1%%; {to} proxy_ssl_session_reuse off;
            proxy_ssl_alpn unknown http/1.1 $nothing; set $nothing ''; }}
         server {{ listen 127.0.0.1:%%PORT2%%; {to} proxy_ssl_server_name on; proxy_ssl_name $name;
            proxy_ssl_verify on; proxy_ssl_verify_depth 2;
            proxy_ssl_certificate client.pem; proxy_ssl_certificate_key client.key; }}
         server {{ listen 127.0.0.1:%%PORT3%%; {to} proxy_ssl_session_reuse off; proxy_ssl_name {NAME};
            proxy_ssl_certificate $client.pem; proxy_ssl_certificate_key $client.key; }}
         server {{ listen 127.0.0.1:%%PORT4%%; {to} proxy_ssl_verify on; proxy_ssl_name other.example; }}
         server {{ listen 127.0.0.1:%%PORT5%%; {to} proxy_ssl_protocols TLSv1.2;
            proxy_ssl_conf_command Protocol TLSv1.3; }}"
    );
    for program in programs() {
        let s = Server::start_in(certified(), &program, &conf_beside(ORIGIN, &stream));
        let ask = |port| said(&ask(&s, port)).to_owned();
        assert_eq!(ask(1), " . http/1.1 NONE", "{program}");
        assert_eq!(ask(2), format!("{NAME} .  SUCCESS"), "{program}");
        // Sessions are kept as they come: a later connection finds one.
        assert!(
            weir_testkit::ask_until(|| ask(2) == format!("{NAME} r  SUCCESS")),
            "{program}: {}",
            s.log()
        );
        for _ in 0..3 {
            assert_eq!(ask(3), " .  SUCCESS", "{program}");
        }
        assert_eq!(ask(4), "nothing", "{program}");
        s.wait_log("upstream SSL certificate does not match \"other.example\"", 1);
        s.wait_file("tls.log", "502 ", 1);
        assert!(ask(5).starts_with(" "), "{program}");
    }
}

#[test]
fn a_server_that_fails_in_the_handshake_is_passed_by() {
    // It reads on after its end: a close over unread bytes is a reset.
    let closes = listen(|mut socket: TcpStream| {
        let _ = socket.shutdown(Shutdown::Write);
        let _ = socket.read_to_end(&mut Vec::new());
    });
    let silent = listen(|mut socket| {
        let _ = socket.read_to_end(&mut Vec::new());
    });
    let conf = conf_beside(
        ORIGIN,
        &format!(
            "upstream group {{ server 127.0.0.1:{closes};
                server 127.0.0.1:{silent} max_fails=0; server 127.0.0.1:%%PORT%%; }}
             log_format tries '$upstream_addr;';
             server {{ listen 127.0.0.1:%%PORT1%%; proxy_pass group; proxy_ssl on;
                proxy_connect_timeout 2s; access_log %%DIR%%/tries.log tries; }}"
        ),
    );
    let s = Server::start_in(certified(), WEIR, &conf);
    assert_eq!(said(&ask(&s, 1)), " .  NONE");
    let tries = format!("127.0.0.1:{closes}, 127.0.0.1:{silent}, 127.0.0.1:{};", s.port());
    s.wait_file("tries.log", &tries, 1);
    s.wait_log("peer closed connection in SSL handshake while SSL handshaking to upstream", 1);
    s.wait_log("upstream timed out (110: Connection timed out) while SSL handshaking to", 1);
    s.wait_log("upstream server temporarily disabled while SSL handshaking to upstream", 1);
}

#[test]
fn a_balancers_word_goes_before_the_handshake_with_a_server() {
    let http = "server { listen 127.0.0.1:%%PORT%% ssl proxy_protocol;
        location / { return 200 '[answer $proxy_protocol_addr $https]'; } }";
    let stream = "log_format counts '$remote_port $bytes_received $upstream_bytes_sent';
        server { listen 127.0.0.1:%%PORT1%%; proxy_pass 127.0.0.1:%%PORT%%;
            proxy_ssl on; proxy_protocol on; access_log %%DIR%%/counts.log counts; }";
    for program in programs() {
        let s = Server::start_in(certified(), &program, &conf_beside(http, stream));
        assert_eq!(said(&ask(&s, 1)), "127.0.0.1 on", "{program}");
        s.wait_file("counts.log", "\n", 1);
        let line = s.dir().read("counts.log");
        let port = line.split(' ').next().unwrap();
        let head = format!("PROXY TCP4 127.0.0.1 127.0.0.1 {port} {}\r\n", s.port_at(1));
        let expected = format!("{port} {} {}\n", GET.len(), head.len() + GET.len());
        assert_eq!(line, expected, "{program}");
    }
}
