// SPDX-License-Identifier: Apache-2.0
//! `tokentap top`: a table of the running sequences, with their speed and their entropy.

mod screen;
mod snapshot;
mod table;

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use crossterm::event::{Event, EventStream, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use futures_util::StreamExt;

use crate::cli::control::ControlClient;
use crate::cli::print;
use crate::cli::scale::Scale;
use crate::cli::serve::Signals;
use crate::config::TopArgs;
use screen::Screen;
use snapshot::Snapshot;
use table::{SortOrder, Table};

/// The time between two polls.
const INTERVAL: Duration = Duration::from_secs(1);

/// The maximum duration of a poll.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Shows the table until `q`, Ctrl-C or a signal. Prints it once if standard output is not a terminal.
///
/// # Errors
/// A line for the user when the first poll fails, or the terminal cannot be used.
pub async fn run(args: &TopArgs) -> Result<(), String> {
    let client = ControlClient::try_new(&args.port)?;
    let mut table = Table::new(client.url().to_owned(), Scale::of_stdout());
    table.update(poll(&client).await?);
    if args.once || !std::io::stdout().is_terminal() {
        print(&table.text());
        return Ok(());
    }
    watch(&client, table).await
}

async fn poll(client: &ControlClient) -> Result<Snapshot, String> {
    let polled = tokio::time::timeout(TIMEOUT, Snapshot::read(client)).await;
    polled.unwrap_or_else(|_| Err(format!("{} does not answer: nothing for {} s", client.url(), TIMEOUT.as_secs())))
}

/// Draws the table after each poll, key and change of size.
async fn watch(client: &ControlClient, mut table: Table) -> Result<(), String> {
    let mut signals = Signals::catch()?;
    let mut screen = Screen::open().map_err(|error| format!("the terminal cannot be used: {error}"))?;
    let mut events = EventStream::new();
    let next = || async {
        tokio::time::sleep(INTERVAL).await;
        poll(client).await
    };
    let mut polling = Box::pin(next());
    loop {
        screen.draw(|width, height| table.lines(width, height)).map_err(|error| format!("the terminal: {error}"))?;
        tokio::select! {
            polled = &mut polling => {
                match polled {
                    Ok(snapshot) => table.update(snapshot),
                    Err(problem) => table.fail(problem, Instant::now()),
                }
                polling = Box::pin(next());
            }
            event = events.next() => match event {
                Some(Ok(Event::Key(key))) if key.kind != KeyEventKind::Release => match action(key) {
                    Some(Action::Quit) => return Ok(()),
                    Some(Action::Sort(order)) => table.sort_by(order),
                    None => {}
                },
                Some(Ok(_)) => {}
                // the terminal is closed
                Some(Err(_)) | None => return Ok(()),
            },
            () = signals.next() => return Ok(()),
        }
    }
}

/// What a key does.
enum Action {
    Quit,
    Sort(SortOrder),
}

fn action(key: KeyEvent) -> Option<Action> {
    match key.code {
        // in raw mode the terminal sends no signal
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => Some(Action::Quit),
        KeyCode::Char('q') | KeyCode::Esc => Some(Action::Quit),
        KeyCode::Char('a') => Some(Action::Sort(SortOrder::Age)),
        KeyCode::Char('t') => Some(Action::Sort(SortOrder::Speed)),
        KeyCode::Char('e') => Some(Action::Sort(SortOrder::Entropy)),
        _ => None,
    }
}
