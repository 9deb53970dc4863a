//! WordPress: PHP-FPM and MariaDB.

use std::path::{Path, PathBuf};
use std::process::Command;

use weir_testkit::{Dir, Process, until};

use crate::{FASTCGI_PARAMS, client, done, program, start, there, weir, went_well};

const SITE: &str = r#"
    root %%DIR%%/site;
    index index.php;
    client_max_body_size 64m;
    location = /favicon.ico { log_not_found off; access_log off; }
    location = /robots.txt { allow all; log_not_found off; access_log off; }
    location ~ /\. { deny all; }
    location ~* /(?:uploads|files)/.*\.php$ { deny all; }
    location / { try_files $uri $uri/ /index.php?$args; }
    location ~ \.php$ {
        include fastcgi_params;
        fastcgi_intercept_errors on;
        fastcgi_pass unix:%%DIR%%/php.sock;
        fastcgi_param SCRIPT_FILENAME $document_root$fastcgi_script_name;
    }
    location ~* \.(js|css|png|jpg|jpeg|gif|ico)$ { expires max; log_not_found off; }"#;

const SETTINGS: &str = "<?php
    define('DB_NAME', 'site'); define('DB_USER', 'root'); define('DB_PASSWORD', '');
    define('DB_HOST', 'localhost:%%DIR%%/sql.sock'); define('DB_CHARSET', 'utf8mb4');
    define('DISABLE_WP_CRON', true); define('WP_HTTP_BLOCK_EXTERNAL', true);
    define('AUTH_KEY', 'a'); define('NONCE_KEY', 'b'); define('LOGGED_IN_KEY', 'c');
    define('AUTH_SALT', 'd'); define('NONCE_SALT', 'e'); define('LOGGED_IN_SALT', 'f');
    function wp_mail() { return true; }
    $table_prefix = 'wp_';
    if (!defined('ABSPATH')) { define('ABSPATH', __DIR__ . '/'); }
    require_once ABSPATH . 'wp-settings.php';";

const WORDPRESS: &str = "/usr/share/wordpress";

struct Programs {
    wordpress: PathBuf,
    php: PathBuf,
    database: PathBuf,
    new_database: PathBuf,
    curl: PathBuf,
}

fn programs() -> Option<Programs> {
    Some(Programs {
        wordpress: there([WORDPRESS.into()].into_iter(), "wordpress")?,
        php: there(
            ["8.2", "8.3", "8.4"].map(|n| format!("/usr/sbin/php-fpm{n}").into()).into_iter(),
            "php-fpm",
        )?,
        database: program("mariadbd")?,
        new_database: program("mariadb-install-db")?,
        curl: program("curl")?,
    })
}

/// A database and PHP with the site's files.
fn site(programs: &Programs, dir: &Dir) -> [Process; 2] {
    let path = dir.path().display().to_string();
    let copy = ["-rL", &programs.wordpress.display().to_string(), &format!("{path}/site")];
    client(Path::new("cp"), copy);
    dir.write("site/wp-config.php", SETTINGS.replace("%%DIR%%", &path));
    let mut command = Command::new(&programs.new_database);
    command.args(["--no-defaults", "--user=root", "--skip-test-db", "--skip-name-resolve"]);
    command.args(["--auth-root-authentication-method=normal", &format!("--datadir={path}/sql")]);
    done(&mut command);
    let mut command = Command::new(&programs.database);
    command.args(["--no-defaults", "--user=root", "--skip-networking", "--skip-grant-tables"]);
    command.args([format!("--datadir={path}/sql"), format!("--socket={path}/sql.sock")]);
    command.arg("--innodb-flush-log-at-trx-commit=0");
    let database = start(&mut command, dir, "sql.log");
    let root = if rustix::process::geteuid().is_root() { "user = root\ngroup = root" } else { "" };
    let conf = dir.write(
        "fpm.conf",
        format!(
            "[global]\nerror_log = {path}/fpm.log\ndaemonize = no\n\
             [www]\n{root}\nlisten = {path}/php.sock\nlisten.mode = 0666\npm = static\npm.max_children = 4\n\
             php_admin_value[post_max_size] = 64M\nphp_admin_value[upload_max_filesize] = 64M\n"
        ),
    );
    let php = start(Command::new(&programs.php).args(["-F", "-R", "-y"]).arg(conf), dir, "php.log");
    for socket in ["sql.sock", "php.sock"] {
        assert!(
            until(dir.path(), || dir.file(socket).exists()),
            "{socket}: {}",
            dir.read("sql.log")
        );
    }
    [database, php]
}

#[test]
fn wordpress_is_installed_written_and_read() {
    let Some(programs) = programs() else { return };
    let dir = Dir::new();
    dir.write("fastcgi_params", FASTCGI_PARAMS);
    let _running = site(&programs, &dir);
    let socket = dir.file("sql.sock").display().to_string();
    let create = ["--no-defaults", "-S", &socket, "-e", "CREATE DATABASE site"];
    client(Path::new("mariadb"), create);
    let text = "a line of a text\n".repeat(200_000);
    let file = format!("@{}", dir.write("text.txt", &text).display());
    let server = weir(dir, "", SITE);
    let home = format!("http://127.0.0.1:{}", server.port());
    let jar = server.dir().file("cookies").display().to_string();
    let ask = |url: &str, args: &[&str]| {
        let keep = ["-sSL", "-b", &jar, "-c", &jar];
        let url = if url.starts_with('/') { format!("{home}{url}") } else { url.to_owned() };
        client(&programs.curl, [&keep[..], args, &[&url]].concat())
    };
    let form = "weblog_title=A+site&user_name=me&admin_password=secret-1&admin_password2=secret-1\
                &pw_weak=on&admin_email=a%40b.invalid&blog_public=0";
    let said = ask("/wp-admin/install.php?step=2", &["-d", form]);
    assert!(said.contains("Success!"), "{said}");
    ask("/wp-login.php", &[]);
    let login = format!("log=me&pwd=secret-1&redirect_to={home}/wp-admin/&testcookie=1");
    let said = ask("/wp-login.php", &["-d", &login]);
    assert!(said.contains("Dashboard"), "{said}");
    server.reload();

    let nonce = ask("/wp-admin/admin-ajax.php?action=rest-nonce", &[]);
    let nonce = format!("X-WP-Nonce: {}", nonce.trim());
    let add = |kind: &str, headers: &[&str], body: &str| -> serde_json::Value {
        let headers = headers.iter().copied().chain([nonce.as_str()]).flat_map(|line| ["-H", line]);
        let args: Vec<&str> = headers.chain(["--data-binary", body]).collect();
        let said = ask(&format!("/index.php?rest_route=/wp/v2/{kind}"), &args);
        serde_json::from_str(&said).unwrap_or_else(|e| panic!("{e}: {said}"))
    };
    let post = r#"{"title":"A post","slug":"a-post","content":"Its text.","status":"publish"}"#;
    let post = add("posts", &["Content-Type: application/json"], post);
    // WordPress has seen that addresses without a file come to it.
    let link = post["link"].as_str().unwrap_or_else(|| panic!("{post}"));
    assert!(link.ends_with("/a-post/") && !link.contains("index.php"), "{link}");
    let page = ask(link, &[]);
    assert!(page.contains("Its text.") && page.contains("<title>A post"), "{page}");
    let named = "Content-Disposition: attachment; filename=text.txt";
    let media = add("media", &["Content-Type: text/plain", named], &file);
    let address = media["source_url"].as_str().unwrap_or_else(|| panic!("{media}"));
    assert!(ask(address, &["--compressed"]) == text, "{address} is another text");
    let missing = ask("/no/such/page/", &["-w", "%{http_code}"]);
    assert!(missing.ends_with("404") && missing.contains("A site"), "{missing}");
    assert!(ask("/wp-includes/css/dashicons.css", &[]).contains("@font-face"));
    went_well(&server);
}
