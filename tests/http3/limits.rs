//! Limits of a connection: those that a client remembers from its last one, and those that answers fill.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use quinn::{
    ClientConfig, Connection, ConnectionError, Endpoint, RecvStream, SendStream, TransportConfig,
    VarInt,
};

use super::bench::{URL, assert_answered, bench};
use super::broken::{connect, frame, get};
use super::hostile::{first_datagram, socket};
use super::hq::{client, client_config, request, run_client};
use super::*;

const NAME: &str = "www.example.org";
/// RFC 9114, section 8.1: H3_REQUEST_CANCELLED.
const CANCELLED: VarInt = VarInt::from_u32(0x10c);
/// H3_NO_ERROR.
const NO_ERROR: VarInt = VarInt::from_u32(0x100);

/// Early data is sent by the limits of the last connection, so a server with lower ones takes none.
#[test]
fn early_data_is_not_taken_once_limits_are_lower() {
    let inside = |streams: u32| {
        format!(
            "http3_hq on; http3_max_concurrent_streams {streams}; ssl_early_data on;
             ssl_session_cache shared:quic:100k; location / {{ return 200 $ssl_early_data; }}"
        )
    };
    let server = start("", &inside(8));
    let address: SocketAddr = ([127, 0, 0, 1], server.port()).into();
    let line = b"GET /\r\n";
    run_client(async {
        let mut endpoint = client(&server, "hq-interop");
        let mut tls = client_config(&server, "hq-interop");
        tls.enable_early_data = true;
        let tls = quinn::crypto::rustls::QuicClientConfig::try_from(tls).unwrap();
        endpoint.set_default_client_config(ClientConfig::new(Arc::new(tls)));
        let first = endpoint.connect(address, NAME).unwrap().await.unwrap();
        assert_eq!(request(&first, line).await.read_to_end(9).await.unwrap(), b"");
        for (streams, taken) in [(8, true), (2, false)] {
            if streams != 8 {
                server.configure(&conf("", &inside(streams)));
                server.reload();
            }
            let Ok((again, accepted)) = endpoint.connect(address, NAME).unwrap().into_0rtt() else {
                panic!("the client knows no session before {streams}");
            };
            let early = request(&again, line).await;
            assert_eq!(accepted.await, taken, "{streams} streams");
            let mut answer = if taken { early } else { request(&again, line).await };
            let expected: &[u8] = if taken { b"1" } else { b"" };
            assert_eq!(answer.read_to_end(9).await.unwrap(), expected, "{streams} streams");
            again.close(0u32.into(), b"");
        }
    });
}

/// The server's streams open only behind the handshake. What requests of 0-RTT make it say waits for them.
#[test]
fn a_request_of_early_data_may_be_the_last() {
    let inside = "ssl_early_data on; ssl_session_cache shared:quic:100k; keepalive_requests 1;
                  location / { return 200 early$ssl_early_data; }";
    let server = start("", inside);
    run_client(async {
        let mut endpoint = client(&server, "h3");
        let mut tls = client_config(&server, "h3");
        tls.enable_early_data = true;
        let tls = quinn::crypto::rustls::QuicClientConfig::try_from(tls).unwrap();
        endpoint.set_default_client_config(ClientConfig::new(Arc::new(tls)));
        let (first, _control) = connect(&endpoint, &server).await;
        request(&first, &get("/", &[])).await.read_to_end(1 << 16).await.unwrap();
        let connecting = endpoint.connect(([127, 0, 0, 1], server.port()).into(), NAME).unwrap();
        let Ok((again, accepted)) = connecting.into_0rtt() else {
            panic!("the client knows no session")
        };
        let mut answer = request(&again, &get("/", &[])).await;
        assert!(accepted.await);
        assert!(answer.read_to_end(1 << 16).await.unwrap().ends_with(b"early1"));
        let goaway = [7, 1, 4];
        let mut said = Vec::new();
        let mut own = again.accept_uni().await.unwrap();
        while !said.ends_with(&goaway) {
            said.extend_from_slice(&own.read_chunk(1 << 16, true).await.unwrap().unwrap().bytes);
        }
        assert!(said.starts_with(&[0, 4]), "the first frame is SETTINGS: {said:?}");
    });
}

/// RFC 9204, section 2.2.2.2: the client's encoder learns that the section of such a request is not read.
#[test]
fn a_request_behind_the_last_is_cancelled_in_the_table() {
    let server = start("", "keepalive_requests 1; location / { return 200; }");
    run_client(async {
        let endpoint = client(&server, "h3");
        let (connection, _control) = connect(&endpoint, &server).await;
        request(&connection, &get("/", &[])).await.read_to_end(1 << 16).await.unwrap();
        assert!(request(&connection, &get("/", &[])).await.read_to_end(1 << 16).await.is_err());
        // The type of the stream of a decoder's instructions, and Stream Cancellation of stream 4.
        let (mut said, [decoder, cancelled]) = ([0], [3, 0x44]);
        loop {
            let mut own = connection.accept_uni().await.unwrap();
            own.read_exact(&mut said).await.unwrap();
            if said == [decoder] {
                own.read_exact(&mut said).await.unwrap();
                return assert_eq!(said, [cancelled]);
            }
        }
    });
}

/// Its client makes another one for the next. The host is known from `:authority`.
#[test]
fn a_connection_that_is_not_kept_has_one_request() {
    let http = "log_format request '$connection_requests $http_host $status';";
    let server = start(http, "keepalive_timeout 0; access_log request.log request; return 200;");
    assert_answered(&bench(server.port(), "-n 4 -c 1 --insecure", URL), 4);
    server.wait_file("request.log", "1 www.example.org 200\n", 4);
}

/// What the server says of the connection itself waits for room that answers take.
#[test]
fn a_client_that_reads_late_is_told_which_request_is_the_last() {
    let server = start("", "root .; keepalive_requests 2;");
    server.dir().write("long", long(300_000));
    let address: SocketAddr = ([127, 0, 0, 1], server.port()).into();
    let get = get("/long", &[]);
    run_client(async {
        let mut endpoint = client(&server, "h3");
        let tls = client_config(&server, "h3");
        let tls = quinn::crypto::rustls::QuicClientConfig::try_from(tls).unwrap();
        let mut config = ClientConfig::new(Arc::new(tls));
        let mut transport = TransportConfig::default();
        transport.receive_window(VarInt::from_u32(20_000));
        config.transport_config(Arc::new(transport));
        endpoint.set_default_client_config(config);
        let connection = endpoint.connect(address, NAME).unwrap().await.unwrap();
        let mut settings = connection.open_uni().await.unwrap();
        settings.write_all(&[0, 4, 0]).await.unwrap();
        let mut first = request(&connection, &get).await;
        while connection.stats().frame_rx.data_blocked == 0 {
            tokio::task::yield_now().await;
        }
        // The window is full, and the second request is the last. Nothing is read before it has arrived.
        let acknowledged = connection.stats().frame_rx.acks;
        let mut second = request(&connection, &get).await;
        while connection.stats().frame_rx.acks == acknowledged {
            tokio::task::yield_now().await;
        }
        let first = tokio::spawn(async move { first.read_to_end(1 << 20).await });
        let second = tokio::spawn(async move { second.read_to_end(1 << 20).await });
        for answer in [first.await.unwrap(), second.await.unwrap()] {
            assert!(answer.unwrap().len() > 300_000);
        }
    });
}

/// A head that refers to fields which have not come may be given up while it waits for them, also when its end has come: the stream ends then, and not with its time.
#[test]
fn a_request_that_waits_for_its_fields_is_given_up_by_a_reset() {
    let server = start("", "return 200 here;");
    run_client(async {
        let endpoint = client(&server, "h3");
        let connecting = endpoint.connect(([127, 0, 0, 1], server.port()).into(), NAME);
        let connection = connecting.unwrap().await.unwrap();
        let mut settings = connection.open_uni().await.unwrap();
        settings.write_all(&[0, 4, 0]).await.unwrap();
        // RFC 9204, section 4.5.1: three insertions are needed. GET, https, and the paths of the static table.
        let section = [4, 0, 0xd1, 0xd7, 0xc1];
        let (mut send, mut receive) = connection.open_bi().await.unwrap();
        send.write_all(&[&[1, section.len() as u8], &section[..]].concat()).await.unwrap();
        send.finish().unwrap();
        // The end was sent, and is not acknowledged yet: nothing could be given up after that.
        let sent = connection.stats().frame_tx.stream;
        while connection.stats().frame_tx.stream == sent {
            tokio::task::yield_now().await;
        }
        send.reset(CANCELLED).unwrap();
        let ended = receive.read_to_end(1 << 16).await;
        let by_reset = quinn::ReadToEndError::Read(quinn::ReadError::Reset(CANCELLED));
        assert!(ended == Err(by_reset) || ended.is_ok(), "{ended:?}");
    });
}

/// Sends these bytes on a new stream, which is reset once the server has read them. Returns the direction of the answer.
async fn given_up(connection: &Connection, bytes: &[u8]) -> RecvStream {
    let (mut send, answer) = connection.open_bi().await.unwrap();
    send.write_all(bytes).await.unwrap();
    // The server has read them once it has answered what came behind them.
    request(connection, &get("/", &[])).await.read_to_end(1 << 16).await.unwrap();
    send.reset(CANCELLED).unwrap();
    answer
}

/// As with nginx, a head that waits for its fields is answered when the client gives it up.
#[test]
fn a_head_that_is_given_up_while_it_waits_for_its_fields_is_a_bad_request() {
    let server = start("", "return 200 here;");
    run_client(async {
        let endpoint = client(&server, "h3");
        let (connection, _control) = connect(&endpoint, &server).await;
        let mut answer = given_up(&connection, &frame(1, &[4, 0, 0xd1, 0xd7, 0xc1])).await;
        let said = answer.read_to_end(1 << 16).await.unwrap();
        assert!(String::from_utf8_lossy(&said).contains("400 Bad Request"), "{said:?}");
    });
}

/// A request whose trailers wait for their fields is given up by a reset, too. Its body has come, and is passed on to no server.
#[test]
fn a_request_that_waits_for_its_trailers_is_given_up_by_a_reset() {
    let server = start("", "location / { proxy_pass http://127.0.0.1:1; }");
    run_client(async {
        let endpoint = client(&server, "h3");
        let (connection, _control) = connect(&endpoint, &server).await;
        let trailers = frame(1, &[4, 0, 0xd1]);
        let whole = [get("/", &[]), frame(0, b"body"), trailers].concat();
        let mut answer = given_up(&connection, &whole).await;
        let ended = answer.read_to_end(1 << 16).await;
        let by_reset = quinn::ReadToEndError::Read(quinn::ReadError::Reset(CANCELLED));
        assert_eq!(ended, Err(by_reset));
    });
}

/// A connection is idle from the end of its last request, also one that was long in coming.
#[test]
fn a_connection_that_has_asked_is_kept_for_its_time_and_no_longer() {
    let others = "server { listen 127.0.0.1:%%PORT1%% quic; keepalive_timeout 3; return 200; }
                  server { listen 127.0.0.1:%%PORT2%%; return 200; }";
    let server =
        start(others, "keepalive_timeout 1; location / { proxy_pass http://127.0.0.1:%%PORT2%%; }");
    run_client(async {
        let endpoint = client(&server, "h3");
        let patient = async || {
            let address = ([127, 0, 0, 1], server.port_at(1)).into();
            endpoint.connect(address, NAME).unwrap().await.unwrap()
        };
        let (hasty, _control) = connect(&endpoint, &server).await;
        let (mut send, mut answer) = hasty.open_bi().await.unwrap();
        send.write_all(&get("/", &[("content-length", "1")])).await.unwrap();
        patient().await.closed().await;
        send.write_all(&frame(0, b"x")).await.unwrap();
        send.finish().unwrap();
        answer.read_to_end(1 << 16).await.unwrap();
        let patient = patient().await;
        let mut ends = [&hasty, &patient].map(|connection| Box::pin(connection.closed()));
        let first = poll_fn(|cx| {
            let over = ends.iter_mut().position(|end| end.as_mut().poll(cx).is_ready());
            over.map_or(Poll::Pending, Poll::Ready)
        });
        assert_eq!(first.await, 0, "a connection was kept for three times its time");
    });
}

/// `send_timeout` begins anew with each piece that a client takes, however small.
#[test]
fn a_client_that_takes_little_at_a_time_gets_all() {
    let server = start("", "root .; send_timeout 2s;");
    server.dir().write("long", long(300_000));
    run_client(async {
        let mut endpoint = client(&server, "h3");
        let tls = client_config(&server, "h3");
        let tls = quinn::crypto::rustls::QuicClientConfig::try_from(tls).unwrap();
        let mut config = ClientConfig::new(Arc::new(tls));
        let mut transport = TransportConfig::default();
        transport.stream_receive_window(VarInt::from_u32(16_000));
        config.transport_config(Arc::new(transport));
        endpoint.set_default_client_config(config);
        let (connection, _control) = connect(&endpoint, &server).await;
        let mut answer = request(&connection, &get("/long", &[])).await;
        let mut taken = 0;
        // In all for longer than the time, and for fewer bytes than the server has made.
        for _ in 0..8 {
            taken += answer.read_chunk(3_000, true).await.unwrap().unwrap().bytes.len();
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        assert!(taken + answer.read_to_end(1 << 20).await.unwrap().len() > 300_000);
    });
}

/// The reset that a client waits for says how much of its limits the answer took.
#[test]
fn an_answer_that_is_stopped_is_reset_though_more_of_it_may_be_sent() {
    let server = start("", "root .;");
    server.dir().write("long", long(300_000));
    run_client(async {
        let mut endpoint = client(&server, "h3");
        let tls = client_config(&server, "h3");
        let tls = quinn::crypto::rustls::QuicClientConfig::try_from(tls).unwrap();
        let mut config = ClientConfig::new(Arc::new(tls));
        let mut transport = TransportConfig::default();
        transport.receive_window(VarInt::from_u32(20_000));
        config.transport_config(Arc::new(transport));
        endpoint.set_default_client_config(config);
        let (connection, _control) = connect(&endpoint, &server).await;
        for answers in 1..4 {
            let mut answer = request(&connection, &get("/long", &[])).await;
            while connection.stats().frame_rx.data_blocked < answers {
                tokio::task::yield_now().await;
            }
            // That makes room in the connection's limit, and both are said in one packet.
            answer.stop(CANCELLED).unwrap();
            while connection.stats().frame_rx.reset_stream < answers {
                tokio::task::yield_now().await;
            }
        }
    });
}

/// A client may say first that it wants no answer, and only then that no more of its request comes. Each such stream leaves its place to
/// another one.
#[test]
fn uploads_that_are_given_up_leave_their_places() {
    let inside = "http3_max_concurrent_streams 2; location / { return 200 fine; }
                  location /wait { proxy_pass http://127.0.0.1:1; }";
    let server = start("", inside);
    run_client(async {
        let endpoint = client(&server, "h3");
        let (connection, _control) = connect(&endpoint, &server).await;
        for uploads in 1..6 {
            let (mut send, mut answer) = connection.open_bi().await.unwrap();
            send.write_all(&get("/wait", &[("content-length", "1")])).await.unwrap();
            answer.stop(CANCELLED).unwrap();
            // The server has taken note of the first half.
            while connection.stats().frame_rx.reset_stream < uploads {
                tokio::task::yield_now().await;
            }
            // The server may have said by now that it wants no more.
            let _ = send.reset(CANCELLED);
        }
        let mut answer = request(&connection, &get("/", &[])).await;
        assert!(answer.read_to_end(1000).await.unwrap().ends_with(b"fine"));
    });
}

/// A server of 32 `worker_connections`, of which QUIC has half.
fn small() -> Server {
    let conf = "user root; worker_processes 1; worker_threads 1; events { worker_connections 32; }
         http { ssl_certificate chain.pem; ssl_certificate_key leaf.key;
             server { listen 127.0.0.1:%%PORT%% quic; listen 127.0.0.1:%%PORT%% ssl;
                 location / { return 200 fine; }
                 location /wait { proxy_pass http://127.0.0.1:1; } } }";
    Server::start_in(certified(), WEIR, conf)
}

/// A connection with a request that is under way: its body does not come.
struct Waiting {
    connection: Connection,
    _sending: [SendStream; 2],
    _answer: RecvStream,
}

async fn waiting(endpoint: &Endpoint, server: &Server) -> Waiting {
    let (connection, settings) = connect(endpoint, server).await;
    let (mut send, answer) = connection.open_bi().await.unwrap();
    send.write_all(&get("/wait", &[("content-length", "1")])).await.unwrap();
    Waiting { connection, _sending: [settings, send], _answer: answer }
}

/// A client that has its answer and stays does not keep others out. One that waits for its answer keeps its place.
#[test]
fn idle_connections_make_room_for_new_ones() {
    let server = small();
    run_client(async {
        let endpoint = client(&server, "h3");
        let (mut busy, mut idle) = (Vec::new(), Vec::new());
        for _ in 0..4 {
            busy.push(waiting(&endpoint, &server).await);
        }
        for n in 0..40 {
            let (connection, settings) = connect(&endpoint, &server).await;
            let mut answer = request(&connection, &get("/", &[])).await;
            assert!(!answer.read_to_end(1000).await.unwrap().is_empty(), "connection {n}");
            idle.push((connection, settings));
        }
        let ConnectionError::ApplicationClosed(close) = idle[0].0.closed().await else {
            panic!("the longest idle connection does not end in order")
        };
        assert_eq!(close.error_code, NO_ERROR);
        assert!(busy.iter().all(|busy| busy.connection.close_reason().is_none()));
    });
    server.wait_log("[warn]", 1);
    server.wait_log(
        " connections of QUIC are as many as worker_connections allow, the idle ones make room",
        1,
    );
}

#[test]
fn connections_in_use_keep_their_places() {
    let server = small();
    let Some(first) = first_datagram(&Dir::new()) else { return };
    run_client(async {
        let endpoint = client(&server, "h3");
        let mut busy = Vec::new();
        for _ in 0..16 {
            busy.push(waiting(&endpoint, &server).await);
        }
        socket(&server).send(&first).unwrap();
        server.wait_log("16 connections of QUIC are as many as worker_connections allow\n", 1);
        assert!(busy.iter().all(|busy| busy.connection.close_reason().is_none()));
    });
    assert!(server.wait_line("connections of QUIC").contains("[alert]"));
}
