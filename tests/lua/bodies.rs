//! Bodies of requests that scripts make: in memory and in files.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use weir_testkit::{Server, until};

use super::server;

/// A server that tells what `/t` leaves as the body.
fn echo(script: &str) -> Server {
    server(&format!(
        r#"root %%DIR%%; client_body_buffer_size 16;
           location = /t {{
               rewrite_by_lua_block {{ {script} }}
               proxy_pass http://127.0.0.1:%%PORT%%/echo;
           }}
           location = /echo {{ content_by_lua_block {{
               ngx.req.read_body()
               ngx.print(ngx.var.http_content_length, " ", ngx.req.get_body_data())
           }} }}"#
    ))
}

fn posted(server: &Server, body: &str) -> String {
    let length = format!("Content-Length: {}\r\n", body.len());
    server.connect().ask("POST /t", &length, body).body()
}

#[test]
fn a_script_sends_a_file_in_place_of_the_body() {
    let server = echo(
        "ngx.req.read_body() ngx.req.set_body_file(ngx.var.document_root .. '/body', ngx.var.args ~= nil) \
         ngx.req.set_header('X-File', ngx.req.get_body_file())",
    );
    server.dir().write("body", "from a file");
    assert_eq!(posted(&server, "from the client"), "11 from a file");
    let missing = echo("ngx.req.read_body() ngx.req.set_body_file('/nowhere/at/all')");
    assert_eq!(missing.connect().ask("POST /t", "Content-Length: 1\r\n", "x").status, 500);
    missing.wait_log("open() \"/nowhere/at/all\" failed (2: No such file or directory)", 1);
    let unread = echo("ngx.req.set_body_file('/nowhere/at/all')");
    assert_eq!(unread.connect().ask("POST /t", "Content-Length: 1\r\n", "x").status, 500);
    unread.wait_log("request body not read yet", 1);
}

#[test]
fn a_file_that_is_to_be_cleaned_goes_with_its_request() {
    let server =
        echo("ngx.req.read_body() ngx.req.set_body_file(ngx.var.document_root .. '/body', true)");
    // The worker may not be the user that runs the test.
    fs::set_permissions(server.dir().path(), fs::Permissions::from_mode(0o777)).unwrap();
    let path = server.dir().path().join("body");
    server.dir().write("body", "once");
    assert_eq!(posted(&server, "x"), "4 once");
    assert!(until(server.dir().path(), || !path.exists()));
}

#[test]
fn a_body_that_is_put_together_is_a_file_where_it_is_large() {
    let script = "
        ngx.req.read_body()
        ngx.req.init_body(tonumber(ngx.var.arg_room) or 16)
        ngx.req.append_body('he') ngx.req.append_body('llo')
        ngx.req.finish_body()
        local file = ngx.req.get_body_file()
        ngx.log(ngx.WARN, 'data ', ngx.req.get_body_data(), ', file ', file and io.open(file):read('*a'), '.')";
    let server = echo(script);
    let ask = |path: &str| server.connect().ask(path, "Content-Length: 1\r\n", "x").body();
    assert_eq!(ask("POST /t"), "5 hello");
    server.wait_log("data hello, file nil.", 1);
    assert_eq!(ask("POST /t?room=4"), "5 hello");
    server.wait_log("data nil, file hello.", 1);
    server.wait_log("a client request body is buffered to a temporary file", 1);
}

#[test]
fn a_script_changes_the_body_that_it_reads_by_a_socket() {
    let server = echo(
        "local sock = assert(ngx.req.socket())
         ngx.req.init_body()
         for piece in function() return sock:receive(1) end do ngx.req.append_body(piece:upper()) end
         ngx.req.finish_body()",
    );
    assert_eq!(posted(&server, "small"), "5 SMALL");
    assert_eq!(posted(&server, "small again"), "11 SMALL AGAIN");
}

#[test]
fn a_socket_of_a_body_ends_with_its_request() {
    let server = server(
        r#"location = /t { content_by_lua_block {
               if kept then return ngx.say(kept:receive(1)) end
               kept = assert(ngx.req.socket())
               ngx.say(kept:receive(1))
           } }"#,
    );
    assert_eq!(posted(&server, "body"), "b\n");
    assert_eq!(posted(&server, "body"), "nilclosed\n");
}

#[test]
fn the_end_of_a_body_that_cannot_be_the_mark_is_received() {
    let server = server(
        r#"location = /t { content_by_lua_block {
               local piece = assert(ngx.req.socket()):receiveuntil("\r\n")
               ngx.say(piece(3), " ", piece(1), " ", piece(1))
           } }"#,
    );
    assert_eq!(posted(&server, "body"), "bod y nilclosed\n");
}

#[test]
fn a_script_tells_a_body_that_breaks_off_from_one_that_ends() {
    let server = server(
        r#"location = /t { content_by_lua_block {
               ngx.log(ngx.WARN, "got ", table.concat({ select(2, assert(ngx.req.socket()):receive(9)) }, ": "), ".")
           } }"#,
    );
    let mut client = server.connect();
    client.send("POST /t HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\npart");
    drop(client);
    server.wait_log("got client aborted: part.", 1);
    posted(&server, "whole");
    server.wait_log("got closed: whole.", 1);
}

#[test]
fn a_thread_that_reads_the_body_does_not_hold_up_the_others() {
    let server = server(
        r#"location = /t { content_by_lua_block {
               local sock = assert(ngx.req.socket())
               sock:settimeout(20000)
               local reader = ngx.thread.spawn(function() return sock:receive(4) end)
               ngx.sleep(0)
               ngx.say("send it")
               ngx.flush(true)
               ngx.say((select(2, sock:receive(1))))
               ngx.say(select(2, ngx.thread.wait(reader)))
               sock:settimeout(1)
               local late = ngx.thread.spawn(function() return sock:receive(4) end)
               ngx.say(select(3, ngx.thread.wait(late)))
           } }"#,
    );
    let mut client = server.connect();
    client.send("POST /t HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 5\r\n\r\n");
    while client.try_line().unwrap() != "send it" {}
    client.send("body");
    let rest = client.rest();
    for said in ["socket busy reading\n", "body\n", "timeout\n"] {
        assert!(rest.contains(said), "{said} {rest}");
    }
}

#[test]
fn a_thread_that_waits_for_the_whole_body_does_not_hold_up_the_others() {
    let server = server(
        r#"location = /t { content_by_lua_block {
               local reader = ngx.thread.spawn(function() ngx.req.read_body() return ngx.req.get_body_data() end)
               ngx.sleep(0)
               ngx.say("send it")
               ngx.flush(true)
               ngx.say((select(2, ngx.req.socket())), ", ", (select(2, ngx.req.socket(true))))
               ngx.say(select(2, ngx.thread.wait(reader)))
           } }
           location = /on {
               access_by_lua_block { ngx.thread.spawn(function() ngx.req.read_body() end) ngx.exit(ngx.OK) }
               content_by_lua_block { ngx.req.read_body() ngx.say(ngx.req.get_body_data()) }
           }"#,
    );
    let mut client = server.connect();
    client.send("POST /t HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 4\r\n\r\nbo");
    while client.try_line().unwrap() != "send it" {}
    client.send("dy");
    let rest = client.rest();
    let said = "request body already exists, pending request body reading in some other thread\n";
    assert!(rest.contains(said) && rest.contains("body\n"), "{rest}");

    // A later handler finds all of the body that an ended script has begun to read.
    let mut client = server.connect();
    client.send("POST /on HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbo");
    client.send("dy");
    assert_eq!(client.response().body(), "body\n");
}

#[test]
fn the_part_of_a_line_in_front_of_the_end_has_no_carriage_return() {
    let server = server(
        r#"location = /t { content_by_lua_block {
               local sock = assert(ngx.req.socket())
               ngx.say(sock:receive())
               local line, err, part = sock:receive()
               ngx.say(line, " ", err, " ", #part, " ", part)
           } }"#,
    );
    let answer = server.ask("POST /t", "Content-Length: 11\r\n", "one\r\nlast\r\r");
    assert_eq!(answer.body(), "one\nnil closed 4 last\n");
}

#[test]
fn a_body_that_was_discarded_is_not_set() {
    let server = echo(
        "ngx.req.discard_body() \
         local ok, why = pcall(ngx.req.set_body_data, 'of the script') \
         ngx.req.set_header('X-Said', why) \
         ngx.log(ngx.WARN, 'set: ', why, ', arguments: ', (pcall(ngx.req.get_post_args)))",
    );
    server.connect().ask("POST /t", "Content-Length: 3\r\n", "a=b").body();
    server.wait_log("set: request body not read yet, arguments: false", 1);
}

#[test]
fn a_body_that_a_script_receives_is_set_by_it() {
    let server = echo(
        "local first = ngx.req.socket():receive(3) \
         ngx.req.set_body_data(first .. ', then of the script') \
         ngx.log(ngx.WARN, 'set: ', ngx.req.get_body_data())",
    );
    assert_eq!(posted(&server, "one and more"), "23 one, then of the script");
    server.wait_log("set: one, then of the script", 1);
}
