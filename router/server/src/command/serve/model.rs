//! Which folder is served, and under which names.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::command::{NO_MODULES_OF_THIS_FOLDER, Trouble};
use crate::config::{Config, Surroundings};
use crate::hub::{self, Progress};

/// What the demo model is called.
const DEMO: &str = "demo";

/// The folder of the configured model. Blocks: it may be downloaded.
pub(in crate::command) fn find(
    config: &Config,
    around: &Surroundings,
    progress: Progress<'_>,
) -> Result<PathBuf, Trouble> {
    let folder = match config.model.model.as_deref() {
        None => demo(config, around)?,
        Some(DEMO) if !Path::new(DEMO).is_dir() => demo(config, around)?,
        Some(model) => hub::locate(model, &config.hub, progress).map_err(|error| Trouble::Failed(error.to_string()))?,
    };
    if !folder.join("config.json").is_file() {
        let message = format!("{} has no config.json; give a folder in Hugging Face layout", folder.display());
        return Err(Trouble::Failed(message));
    }
    if let Some(path) = no_file(&folder) {
        let message = format!("{} is no regular file; supported: files, and links to files", path.display());
        return Err(Trouble::Failed(message));
    }
    // The worker has a working folder of its own.
    folder.canonicalize().map_err(|error| Trouble::Failed(format!("{}: {error}", folder.display())))
}

/// Something that would be read of a model, here or in a module's folder, and is a pipe, a socket or a device: whoever opens a pipe waits
/// until somebody writes to it.
fn no_file(folder: &Path) -> Option<PathBuf> {
    const READ: [&str; 8] = ["json", "safetensors", "jinja", "txt", "model", "tiktoken", "bpe", "py"];
    let within =
        |folder: &Path| fs::read_dir(folder).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()));
    let is_read = |path: &Path| path.extension().is_some_and(|end| READ.iter().any(|known| end == *known));
    let is_other = |path: &Path| fs::metadata(path).is_ok_and(|found| !found.is_file() && !found.is_dir());
    within(folder)
        .flat_map(|path| if path.is_dir() { within(&path).collect() } else { vec![path] })
        .find(|path| is_read(path) && is_other(path))
}

/// The names that requests may use; the first one is reported.
pub(super) fn names(config: &Config, folder: &Path) -> Vec<String> {
    if !config.model.served_model_name.is_empty() {
        return config.model.served_model_name.clone();
    }
    let name = match config.model.model.as_deref() {
        None => DEMO.to_owned(),
        Some(model) if !Path::new(model).is_dir() => model.to_owned(), // ORG/NAME
        Some(_) => folder.file_name().map_or_else(|| "model".to_owned(), |name| name.to_string_lossy().into_owned()),
    };
    vec![name]
}

/// The demo model is part of the Python package: the wheel says where, or the worker's interpreter knows.
fn demo(config: &Config, around: &Surroundings) -> Result<PathBuf, Trouble> {
    if let Some(wheel) = &around.wheel {
        return checked_demo(wheel.demo_dir.clone());
    }
    let python = &config.worker.python;
    let question = "import pelton; print(pelton.demo_dir())";
    let mut asking = Command::new(python);
    asking.args([NO_MODULES_OF_THIS_FOLDER, "-c", question]).stdin(Stdio::null()).stderr(Stdio::null());
    match asking.output() {
        Ok(output) if output.status.success() => checked_demo(String::from_utf8_lossy(&output.stdout).trim().into()),
        _ => Err(Trouble::Failed(format!(
            "no MODEL is given, and the demo model is not here: {} has no package `pelton`; give a folder (pelton serve ./FOLDER), \
             ORG/NAME of the hub, or --python with a Python that has it",
            python.display()
        ))),
    }
}

fn checked_demo(folder: PathBuf) -> Result<PathBuf, Trouble> {
    if folder.join("config.json").is_file() {
        return Ok(folder);
    }
    Err(Trouble::Failed(format!(
        "this installation has no demo model ({} is empty); give a folder (pelton serve ./FOLDER) or ORG/NAME of the hub",
        folder.display()
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Wheel;

    fn config(model: Option<&Path>, names: &str) -> Config {
        let mut arguments =
            vec![("served_model_name".to_owned(), names.to_owned()), ("python".to_owned(), "/no/python".to_owned())];
        arguments.extend(model.map(|model| ("model".to_owned(), model.display().to_string())));
        Config::from_arguments(&arguments, &Surroundings::default()).expect("valid")
    }

    fn refusal(config: &Config, around: &Surroundings) -> String {
        match find(config, around, &|_, _, _| ()) {
            Err(Trouble::Failed(message)) => message,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_folder_is_served_under_its_own_name_unless_told_otherwise() {
        let root = tempfile::tempdir().expect("a folder");
        let folder = root.path().join("my-model");
        std::fs::create_dir(&folder).expect("made");
        let around = Surroundings::default();
        assert!(refusal(&config(Some(&folder), ""), &around).contains("has no config.json"));
        std::fs::write(folder.join("config.json"), "{}").expect("written");
        let found = find(&config(Some(&folder), ""), &around, &|_, _, _| ()).expect("there");
        assert_eq!(names(&config(Some(&folder), ""), &found), ["my-model"]);
        assert_eq!(names(&config(Some(&folder), "a,b"), &found), ["a", "b"]);
        assert_eq!(names(&config(None, ""), &found), ["demo"]);
        assert_eq!(names(&config(Some(Path::new("org/name")), ""), &found), ["org/name"]);
    }

    #[test]
    fn a_pipe_among_the_files_is_refused_instead_of_waited_for() {
        use rustix::fs::{CWD, FileType, Mode, mknodat};
        let root = tempfile::tempdir().expect("a folder");
        let (folder, around) = (root.path(), Surroundings::default());
        fs::create_dir(folder.join("2_Dense")).expect("made");
        fs::write(folder.join("config.json"), "{}").expect("written");
        std::os::unix::fs::symlink("nowhere", folder.join("tokenizer.json")).expect("made");
        for name in ["model.safetensors", "2_Dense/config.json"] {
            assert!(find(&config(Some(folder), ""), &around, &|_, _, _| ()).is_ok());
            let path = folder.join(name);
            mknodat(CWD, &path, FileType::Fifo, Mode::RUSR, 0).expect("made");
            let refused = refusal(&config(Some(folder), ""), &around);
            assert_eq!(refused, format!("{} is no regular file; supported: files, and links to files", path.display()));
            fs::remove_file(path).expect("removed");
        }
    }

    #[test]
    fn the_demo_model_comes_from_the_wheel_and_its_absence_is_explained() {
        let root = tempfile::tempdir().expect("a folder");
        let wheel = Wheel { python: "/no/python".into(), demo_dir: root.path().to_owned() };
        let around = Surroundings::new([], Some(wheel)).expect("valid");
        assert!(refusal(&config(None, ""), &around).contains("this installation has no demo model"));
        std::fs::write(root.path().join("config.json"), "{}").expect("written");
        assert!(find(&config(None, ""), &around, &|_, _, _| ()).is_ok());
        assert!(find(&config(Some(Path::new("demo")), ""), &around, &|_, _, _| ()).is_ok());
        assert!(refusal(&config(None, ""), &Surroundings::default()).contains("/no/python has no package `pelton`"));
    }
}
