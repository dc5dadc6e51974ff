use std::ffi::OsString;
use std::path::Path;

use super::*;

fn surroundings(variables: &[(&str, &str)]) -> Surroundings {
    let variables = variables.iter().map(|(name, value)| (OsString::from(name), OsString::from(value)));
    Surroundings::new(variables, None).expect("valid text")
}

fn values(line: &str, variables: &[(&str, &str)]) -> Result<Values, ConfigError> {
    let words: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
    match resolve(&words, Some("model"), &server_settings(), &surroundings(variables))? {
        Asked::Run(values) => Ok(values),
        Asked::Help => panic!("nobody asked for help"),
    }
}

fn config(line: &str) -> Result<Config, ConfigError> {
    Config::new(&values(line, &[])?)
}

/// Writes `text` as a configuration file and resolves `line` with it. `FILE` in the error stands for its path.
fn with_file(text: &str, line: &str, variables: &[(&str, &str)]) -> Result<Values, String> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("pelton.toml");
    std::fs::write(&path, text).expect("written");
    let shown = path.display().to_string();
    values(&format!("{line} --config {shown}"), variables).map_err(|error| error.to_string().replace(&shown, "FILE"))
}

#[test]
fn flags_come_before_variables_before_the_file_before_defaults() {
    let file = "[server]\nhost = \"::1\"\nport = 1\ngrpc-port = 11\n\n[model]\nmax-model-len = \"32k\"\n";
    let values = with_file(file, "--port 3", &[("PELTON_PORT", "2"), ("PELTON_GRPC_PORT", "12")]).expect("valid");
    for (field, text, origin) in [
        ("port", "3", "flag --port"),
        ("grpc_port", "12", "variable PELTON_GRPC_PORT"),
        ("host", "::1", ":2 server.host"),
        ("max_model_len", "32k", ":7 model.max-model-len"),
        ("dtype", "auto", "default"),
    ] {
        let given = values.given(field);
        assert_eq!(given.texts, [text], "{field}");
        assert!(given.origin.to_string().ends_with(origin), "{field}: {}", given.origin);
    }
    let config = Config::new(&values).expect("goes together");
    assert_eq!((config.server.port, config.server.grpc_port, config.server.host.as_str()), (3, Some(12), "::1"));
    assert_eq!(config.model.max_model_len, Auto::Of(Tokens(32 * 1024)));
}

#[test]
fn addresses_that_kubernetes_puts_into_each_pod_are_no_settings() {
    let links = [
        ("PELTON_PORT", "tcp://10.0.0.1:8000"),
        ("PELTON_PORT_8000_TCP", "tcp://10.0.0.1:8000"),
        ("PELTON_PORT_8000_TCP_ADDR", "10.0.0.1"),
        ("PELTON_PORT_8000_TCP_PORT", "8000"),
        ("PELTON_PORT_8000_TCP_PROTO", "tcp"),
        ("PELTON_SERVICE_HOST", "10.0.0.1"),
        ("PELTON_SERVICE_PORT", "8000"),
        ("PELTON_SERVICE_PORT_HTTP", "8000"),
        ("PELTON_ROUTER_PORT", "udp://10.0.0.2:53"),
        ("PELTON_ROUTER_PORT_53_UDP_PORT", "53"),
        ("PELTON_ROUTER_SERVICE_HOST", "10.0.0.2"),
        ("PELTON_ROUTER_SERVICE_PORT_DNS", "53"),
    ];
    assert_eq!(values("", &links).expect("they say nothing").given("port").texts, ["8000"]);
    let own = links.map(|(name, value)| if name == "PELTON_PORT" { (name, "81") } else { (name, value) });
    assert_eq!(values("", &own).expect("the pod's own").given("port").texts, ["81"]);
    for (name, value) in links.into_iter().filter(|(name, _)| !name.ends_with("SERVICE_HOST")) {
        assert!(values("", &[(name, value)]).is_err(), "without a service {name} is a mistake");
    }
    assert!(values("", &[links[5], ("PELTON_PORTT", "tcp://10.0.0.1:8000")]).is_err());
}

#[test]
fn all_ways_to_write_a_flag_are_understood() {
    let config = config(
        "--prefix-caching=false --served-model-name a,b --served-model-name c --api-key k,1 --kv-memory=64MiB --offline ./model",
    )
    .expect("valid");
    assert!(!config.engine.prefix_caching && config.hub.offline);
    assert_eq!(config.model.served_model_name, ["a", "b", "c"]);
    assert_eq!(config.server.api_key, [Secret::new("k,1")]);
    assert_eq!(config.engine.kv_memory, Auto::Of(Bytes(64 << 20)));
    assert_eq!(config.model.model.as_deref(), Some("./model"));
    assert!(!super::tests::config("--no-prefix-caching").expect("valid").engine.prefix_caching);
    assert!(!super::tests::config("--prefix-caching false").expect("valid").engine.prefix_caching);
    assert_eq!(super::tests::config("-- --odd").expect("valid").model.model.as_deref(), Some("--odd"));
}

#[test]
fn wrong_flags_are_refused_with_what_to_change() {
    for (line, expected) in [
        ("--prot 80", "there is no flag `--prot`; did you mean `--port`?"),
        ("--max_model_len 1k", "there is no flag `--max_model_len`; did you mean `--max-model-len`?"),
        ("--tensor-parallel-size 2", "there is no flag `--tensor-parallel-size`; see `--help` for all flags"),
        ("--no-port", "there is no flag `--no-port`; did you mean `--port`?"),
        ("--port 99999", "flag --port: `port` is 99999; allowed: 0 (any free port) to 65535"),
        ("--port", "`--port` needs a value: --port PORT"),
        ("--host --port 1", "`--host` needs a value: --host TEXT"),
        ("--port 1 --port 2", "`--port` is given twice; give it once"),
        ("a b", "`b` is one argument too many"),
        ("--dtype fp8", "flag --dtype: `dtype` is fp8; allowed: auto, bfloat16, float32"),
        ("--block-size 24", "flag --block-size: `block-size` is 24; allowed: auto, or 8, 16, 32, 64, 128, 256"), // C:K1
        ("--max-running 64 --token-budget 32", "`max-running` is 64, more than the `token-budget` of 32"),
        ("--port 80 --grpc-port 80", "`port` and `grpc-port` are both 80"),
        ("--worker tcp://far:1", "a tcp worker asks for a token: set `worker-token-file`"),
        ("--workers 65", "flag --workers: `workers` is 65; allowed: a whole number from 1 to 64"),
        (
            "--workers 2 --worker unix:///a.sock",
            "`workers` is 2: so many are started, and `worker` names 1 that run already",
        ),
        ("--workers 2 --device cuda", "`workers` is 2 and `device` is cuda: they would share the first GPU"),
        ("--worker unix:///a --worker unix:///b --worker unix:///a", "`worker` names unix:///a twice"),
        ("--worker unix:///a --worker tcp://far:1", "a tcp worker asks for a token: set `worker-token-file`"),
        (
            "--kv-disk /kv",
            "`kv-disk` takes blocks from the host's memory and gives them back there: set `kv-host-memory`",
        ),
        ("--kv-host-memory 1GiB --no-prefix-caching", "`kv-host-memory` keeps the prefix cache"),
        ("--worker-ca ca.pem", "`worker-token-file` and `worker-ca` are for a tcp worker"),
        ("--config /no/such.toml", "/no/such.toml: cannot be read: No such file"),
    ] {
        let refused = config(line).expect_err(line).to_string();
        assert!(refused.starts_with(expected), "{line}: {refused}");
    }
}

#[test]
fn wrong_variables_are_refused_with_what_to_change() {
    for (name, value, expected) in [
        ("PELTON_PROT", "1", "there is no variable `PELTON_PROT`; did you mean `PELTON_PORT`?"),
        ("PELTON_MAX_RUNING", "", "there is no variable `PELTON_MAX_RUNING`; did you mean `PELTON_MAX_RUNNING`?"),
        ("PELTON_PORT", "x", "variable PELTON_PORT: `port` is x; allowed: 0 (any free port) to 65535"),
    ] {
        assert_eq!(values("", &[(name, value)]).expect_err(name).to_string(), expected);
    }
    assert_eq!(values("", &[("PELTON_PORT", "")]).expect("an empty variable is none").given("port").texts, ["8000"]);
}

#[test]
fn wrong_files_are_refused_with_their_line() {
    for (file, expected) in [
        ("[server]\nprot = 80\n", "FILE:2: there is no key `prot`; did you mean `port`?"),
        ("\n[sever]\n", "FILE:2: there is no table `sever`; did you mean `[server]`?"),
        ("port = 80\n", "FILE:1: there is no key `port`; did you mean `port` in `[server]`?"),
        ("[model]\nport = 80\n", "FILE:2: there is no key `port`; did you mean `port` in `[server]`?"),
        ("[server]\nport = 80000\n", "FILE:2 server.port: `port` is 80000; allowed: 0 (any free port) to 65535"),
        ("[server]\nport = [1, 2]\n", "FILE:2 server.port: `port` is 1, 2; allowed: one PORT"),
        ("[server]\nport = {}\n", "FILE:2 server.port: `port` is a table; allowed: PORT"),
        ("[server\n", "FILE: TOML parse error at line 1"),
    ] {
        let refused = with_file(file, "", &[]).expect_err(file);
        assert!(refused.starts_with(expected), "{file}: {refused}");
    }
    let both = with_file("[model]\nserved-model-name = [\"a\", \"b\"]\n", "", &[]).expect("a list");
    assert_eq!(both.given("served_model_name").texts, ["a", "b"]);
}

#[test]
fn no_page_and_no_error_shows_a_secret() {
    let values = values("--api-key sk-one --api-key sk-two", &[]).expect("valid");
    let page = explain(&server_settings(), &values);
    assert!(page.contains("****, ****"), "{page}");
    let debugged = format!("{:?}", Config::new(&values).expect("valid"));
    for secret in ["sk-one", "sk-two"] {
        assert!(!page.contains(secret), "{page}");
        assert!(!debugged.contains(secret));
    }
    let refused = super::tests::values("", &[("PELTON_API_KEY", "sk one")]).expect_err("a blank").to_string();
    assert!(!refused.contains("sk"), "{refused}");
}

#[test]
fn explain_names_every_setting_and_who_said_it() {
    let page = explain(&server_settings(), &values("--port 8123", &[("HF_HOME", "/big/hf")]).expect("valid"));
    assert_eq!(page.lines().count(), server_settings().len());
    let line = |name: &str| page.lines().find(|line| line.starts_with(&format!("{name} "))).expect(name).to_owned();
    assert!(line("port").ends_with("flag --port"));
    assert!(line("hub-cache").contains("/big/hf/hub") && line("hub-cache").ends_with("variable HF_HOME"));
    assert!(line("python").contains("python3"));
}

#[test]
fn the_interpreter_of_the_wheel_runs_the_worker() {
    let wheel = Wheel { python: "/env/bin/python".into(), demo_dir: "/env/demo".into() };
    let around = Surroundings::new([], Some(wheel)).expect("valid");
    let config = Config::from_arguments(&[], &around).expect("valid");
    assert_eq!(config.worker.python, Path::new("/env/bin/python"));
    let arguments = [("max_model_len".to_owned(), "2k".to_owned())];
    let config = Config::from_arguments(&arguments, &around).expect("valid");
    assert_eq!(config.model.max_model_len, Auto::Of(Tokens(2048)));
    let wrong = Config::from_arguments(&[("max_model_length".into(), "2".into())], &around).expect_err("unknown");
    assert!(wrong.to_string().contains("max_model_len"), "{wrong}");
}

#[test]
fn the_names_of_all_settings_are_different_and_all_defaults_are_valid() {
    let settings = server_settings();
    for (index, setting) in settings.iter().enumerate() {
        assert!(settings[index + 1..].iter().all(|other| other.field != setting.field), "{}", setting.field);
        assert!(setting.help().ends_with('.'), "{} has a sentence of help", setting.field);
    }
    config("").expect("the defaults go together");
}

#[test]
fn the_docs_page_is_current() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/flags.md");
    let kept = std::fs::read_to_string(path).unwrap_or_default();
    let page = flags_page(&server_settings());
    let differing = kept.lines().zip(page.lines()).find(|(kept, now)| kept != now);
    assert!(
        differing.is_none() && kept == page,
        "run `pelton config docs > docs/flags.md`; first difference: {differing:?}"
    );
}

#[test]
fn help_shows_every_flag() {
    let page = help(&server_settings());
    for setting in server_settings() {
        assert!(page.contains(&format!("  {}", setting.flag())), "{}", setting.flag());
    }
    assert!(page.lines().all(|line| line.chars().count() <= 110), "lines fit a terminal");
    let asked = resolve(&["--port".into(), "1".into(), "--help".into()], None, &server_settings(), &surroundings(&[]));
    assert!(matches!(asked, Ok(Asked::Help)));
}
