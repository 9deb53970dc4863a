//! FastCGI, spoken with PHP-FPM, where that is installed.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use weir_testkit::{Dir, Process, Server, examples, until};

use crate::WEIR;

/// PHP-FPM, if it is here.
fn fpm() -> Option<PathBuf> {
    let mut all = fs::read_dir("/usr/sbin").ok()?.flatten().map(|entry| entry.path());
    all.find(|path| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("php-fpm"))
    })
}

/// A site in PHP: the server, and PHP itself.
fn site(files: &[(&str, &str)]) -> Option<(Server, Process)> {
    let Some(program) = fpm() else {
        eprintln!("skipped: php-fpm is not installed");
        return None;
    };
    let dir = Dir::new();
    for (name, text) in files {
        dir.write(&format!("root/{name}"), text);
    }
    let path = dir.path().display().to_string();
    let root = if rustix::process::geteuid().is_root() { "user = root\ngroup = root" } else { "" };
    let conf = dir.write(
        "fpm.conf",
        format!(
            "[global]\nerror_log = {path}/fpm.log\ndaemonize = no\n\
             [www]\n{root}\nlisten = {path}/php.sock\nlisten.mode = 0666\npm = static\npm.max_children = 2\n\
             php_admin_value[post_max_size] = 100M\nphp_admin_value[upload_max_filesize] = 100M\n\
             php_admin_value[memory_limit] = 256M\nphp_admin_value[log_errors] = on\n"
        ),
    );
    let mut command = Command::new(program);
    command.args(["-F", "-R", "-n", "-y"]).arg(conf);
    let php = Process::start(&mut command);
    let socket = dir.file("php.sock");
    assert!(until(dir.path(), || socket.exists()), "php-fpm does not start");
    let page = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/fastcgi.md"));
    let page = page.expect("the page about FastCGI");
    let example =
        examples(&page).next().expect("its example").replace("/var/www/site", "%%DIR%%/root");
    let example = example.replace("/run/php/php-fpm.sock", "%%DIR%%/php.sock");
    dir.write("fastcgi_params", PARAMS);
    let server = Server::with_locations(dir, WEIR, "client_max_body_size 100m;", &example);
    Some((server, php))
}

/// As distributions have it beside nginx.conf.
const PARAMS: &str = "fastcgi_param QUERY_STRING $query_string;
fastcgi_param REQUEST_METHOD $request_method;
fastcgi_param CONTENT_TYPE $content_type;
fastcgi_param CONTENT_LENGTH $content_length;
fastcgi_param SCRIPT_NAME $fastcgi_script_name;
fastcgi_param REQUEST_URI $request_uri;
fastcgi_param DOCUMENT_URI $document_uri;
fastcgi_param DOCUMENT_ROOT $document_root;
fastcgi_param SERVER_PROTOCOL $server_protocol;
fastcgi_param REQUEST_SCHEME $scheme;
fastcgi_param HTTPS $https if_not_empty;
fastcgi_param GATEWAY_INTERFACE CGI/1.1;
fastcgi_param SERVER_SOFTWARE nginx/$nginx_version;
fastcgi_param REMOTE_ADDR $remote_addr;
fastcgi_param REMOTE_PORT $remote_port;
fastcgi_param SERVER_ADDR $server_addr;
fastcgi_param SERVER_PORT $server_port;
fastcgi_param SERVER_NAME $server_name;
fastcgi_param REDIRECT_STATUS 200;
";

#[test]
fn a_front_controller_answers_what_is_no_file() {
    let front = "<?php header('X-Uri: ' . $_SERVER['REQUEST_URI']);
        if ($_SERVER['REQUEST_URI'] === '/gone') { http_response_code(410); }
        echo $_SERVER['REQUEST_METHOD'], ' ', $_GET['a'] ?? '-', ' ', $_COOKIE['b'] ?? '-';";
    let info = "<?php echo $_SERVER['SCRIPT_NAME'], ' ', $_SERVER['PATH_INFO'] ?? '-';";
    let files = [("index.php", front), ("info.php", info), ("plain.txt", "a file")];
    let Some((server, _php)) = site(&files) else { return };
    assert_eq!(server.get("/plain.txt").body(), "a file");
    let said = server.ask("GET /some/page?a=1", "Cookie: b=2\r\n", "");
    assert_eq!((said.status, said.header("X-Uri")), (200, Some("/some/page?a=1")));
    assert_eq!(said.body(), "GET 1 2");
    assert_eq!(server.get("/gone").status, 410);
    assert_eq!(server.get("/info.php/more").body(), "/info.php /more");
    assert_eq!(server.get("/missing.php").status, 404);
}

#[test]
fn an_upload_of_fifty_megabytes_arrives() {
    let sum = "<?php $in = fopen('php://input', 'r'); $h = hash_init('crc32b'); $n = 0;
        while (!feof($in)) { $s = fread($in, 65536); $n += strlen($s); hash_update($h, $s); }
        echo $n, ' ', hash_final($h);";
    let Some((server, _php)) = site(&[("index.php", ""), ("sum.php", sum)]) else { return };
    let length = 50usize << 20;
    let body: String = (0..length).map(|i| char::from(b' ' + (i / 7 * i % 90) as u8)).collect();
    let mut crc = !0u32;
    for byte in body.bytes() {
        crc ^= u32::from(byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 };
        }
    }
    let headers = format!("Content-Length: {length}\r\nContent-Type: text/plain\r\n");
    let said = server.ask("POST /sum.php", &headers, &body);
    assert_eq!(said.body(), format!("{length} {:08x}", !crc));
}

#[test]
fn a_script_that_streams_is_heard_at_once() {
    let stream = "<?php header('X-Accel-Buffering: no'); echo \"first\\n\"; flush();
        while (!file_exists('go')) { clearstatcache(); usleep(10000); }
        echo 'last';";
    let Some((server, _php)) = site(&[("index.php", ""), ("stream.php", stream)]) else { return };
    let mut client = server.connect();
    client.send("GET /stream.php HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    let mut lines = Vec::new();
    while lines.last().is_none_or(|line| line != "first") {
        lines.push(client.try_line().expect("the first line before the script goes on"));
    }
    server.dir().write("root/go", "");
    assert!(client.rest().contains("last"));
}

#[test]
fn what_php_complains_of_is_logged() {
    let bad = "<?php error_log('a word for the log'); echo 'done';";
    let Some((server, _php)) = site(&[("index.php", ""), ("bad.php", bad)]) else { return };
    assert_eq!(server.get("/bad.php").body(), "done");
    server.wait_log("FastCGI sent in stderr: \"PHP message: a word for the log\"", 1);
}
