//! Drives [`spinetail_hub::pull`] from a shell, for tests that kill it: `pull ORG/REPO|URL OUTPUT [NAME=VALUE ...]`.
//!
//! Settings come from `HF_ENDPOINT` and `HF_TOKEN`, as they do for the command line; `bits`, `group`, `connections`,
//! `revision`, `journal_mib`, `pause_ms` (the first between retries) and `peak` (1 prints the peak of resident memory) are
//! given as NAME=VALUE.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program for the shell")]

use std::ops::ControlFlow;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use spinetail_hub::{Event, HubError, PullRequest, Secret, Settings, Source, Stage, pull};

fn request(args: &[String], settings: &mut Settings) -> Result<PullRequest, String> {
    let [source, output, options @ ..] = args else {
        return Err("usage: pull ORG/REPO|URL OUTPUT [NAME=VALUE ...]".to_owned());
    };
    let mut revision = "main".to_owned();
    let mut request = PullRequest::new(Source::Url(source.clone()), output);
    for option in options {
        let (name, value) = option.split_once('=').ok_or(format!("{option}: expected NAME=VALUE"))?;
        let number = || value.parse::<u64>().map_err(|e| format!("{option}: {e}"));
        match name {
            "bits" => request.options.bits = Some(number()? as u8),
            "group" => request.options.group_size = Some(number()? as usize),
            "connections" => request.connections = number()? as usize,
            "journal_mib" => request.journal_bytes = number()? << 20,
            "pause_ms" => settings.retry.first_pause = Duration::from_millis(number()?),
            "revision" => value.clone_into(&mut revision),
            "peak" => {}
            _ => return Err(format!("{option}: not an option")),
        }
    }
    if !source.contains("://") {
        request.source = Source::Hub { repository: source.clone(), revision };
    }
    Ok(request)
}

/// The kernel's figure for the peak of resident memory, where it has one.
fn peak() -> Option<String> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    status.lines().find_map(|l| l.strip_prefix("VmHWM:")).map(|s| s.trim().to_owned())
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let mut settings = Settings::default();
    if let Ok(endpoint) = std::env::var("HF_ENDPOINT") {
        settings.endpoint = endpoint;
    }
    settings.token = std::env::var("HF_TOKEN").ok().map(Secret::new);
    let request = match request(&args, &mut settings) {
        Ok(request) => request,
        Err(why) => {
            eprintln!("{why}");
            return ExitCode::from(2);
        }
    };
    let mut shown = Instant::now();
    let result = pull(&request, &settings, &mut |event| {
        match event {
            Event::Note(note) => eprintln!("{note}"),
            Event::Progress(p)
                if p.stage != Stage::Listing && shown.elapsed() > Duration::from_millis(500) =>
            {
                shown = Instant::now();
                let mb = |b: f64| b / 1e6;
                let (done, total) = (mb(p.done_bytes as f64), mb(p.total_bytes as f64));
                let left = p.seconds_left.unwrap_or(0.0);
                let stage = p.stage;
                eprintln!(
                    "{stage:?} {done:.1} of {total:.1} MB, {:.1} MB/s, {left:.0} s left",
                    mb(p.bytes_per_second)
                );
            }
            _ => {}
        }
        ControlFlow::Continue(())
    });
    if args.iter().any(|a| a == "peak=1") {
        println!("peak {}", peak().unwrap_or_default());
    }
    match result {
        Ok(summary) => {
            println!("{summary:?}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(if matches!(error, HubError::Cancelled) { 130 } else { 1 })
        }
    }
}
