// SPDX-License-Identifier: Apache-2.0
//! The terminal while the table is shown: raw mode and the alternate screen.

use std::io::{self, Write};

use crossterm::terminal::{
    BeginSynchronizedUpdate, Clear, ClearType, EndSynchronizedUpdate, EnterAlternateScreen, LeaveAlternateScreen,
};
use crossterm::{cursor, queue, terminal};

/// The terminal in raw mode, which has its usual modes again when this is dropped or a thread panics.
pub(super) struct Screen(());

impl Screen {
    /// Enters raw mode and the alternate screen.
    ///
    /// # Errors
    /// When the terminal refuses.
    pub(super) fn open() -> io::Result<Self> {
        let earlier = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            // the message must be on the usual screen
            restore();
            earlier(panic);
        }));
        terminal::enable_raw_mode()?;
        // from here on a failure restores the terminal
        let screen = Self(());
        let mut out = io::stdout().lock();
        queue!(out, EnterAlternateScreen, cursor::Hide, Clear(ClearType::All))?;
        out.flush()?;
        Ok(screen)
    }

    /// Replaces the lines of the screen by those that `lines` returns for a width and a height.
    ///
    /// # Errors
    /// When the terminal cannot be written.
    pub(super) fn draw(&mut self, lines: impl FnOnce(usize, usize) -> Vec<String>) -> io::Result<()> {
        let (width, height) = match terminal::size()? {
            // a terminal that does not know its size, such as a serial console
            (0, _) | (_, 0) => (80, 24),
            size => size,
        };
        let mut out = io::BufWriter::new(io::stdout().lock());
        queue!(out, BeginSynchronizedUpdate)?;
        let lines = lines(usize::from(width), usize::from(height));
        for (row, line) in (0..height).zip(&lines) {
            // cleared first: after a line of the full width the cursor is still on its last character
            queue!(out, cursor::MoveTo(0, row), Clear(ClearType::UntilNewLine))?;
            out.write_all(line.as_bytes())?;
        }
        if lines.len() < usize::from(height) {
            let row = u16::try_from(lines.len()).unwrap_or(height);
            queue!(out, cursor::MoveTo(0, row), Clear(ClearType::FromCursorDown))?;
        }
        queue!(out, EndSynchronizedUpdate)?;
        out.flush()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore();
    }
}

fn restore() {
    let mut out = io::stdout().lock();
    // both fail only if the terminal is closed
    let _ = queue!(out, cursor::Show, LeaveAlternateScreen).and_then(|()| out.flush());
    let _ = terminal::disable_raw_mode();
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The variable with which the next test runs this one in a terminal.
    const IN_TERMINAL: &str = "TEST_IN_TERMINAL";

    /// Panics while the table is shown.
    #[test]
    fn panics_in_a_terminal() {
        if std::env::var_os(IN_TERMINAL).is_none() {
            return;
        }
        let mut screen = Screen::open().unwrap();
        screen.draw(|_, _| vec!["the table".to_owned()]).unwrap();
        panic!("a defect");
    }

    #[test]
    fn terminal_is_restored_before_the_message_of_a_panic() {
        let program = std::env::current_exe().unwrap();
        let test = "cli::top::screen::tests::panics_in_a_terminal";
        let panicking = format!("{IN_TERMINAL}=1 '{}' --exact --nocapture {test}", program.display());
        // `script` gives the shell a terminal
        let command = format!("stty -g; {panicking}; stty -g");
        let done = std::process::Command::new("script").args(["-qec", &command, "/dev/null"]).output().unwrap();
        let shown = String::from_utf8(done.stdout).unwrap();
        let place = |text: &str| shown.find(text).unwrap_or_else(|| panic!("{text:?} is not in {shown:?}"));
        let places = ["\x1b[?1049h", "the table", "\x1b[?25h", "\x1b[?1049l", "a defect"].map(place);
        assert!(places.is_sorted(), "{shown:?}");
        assert_eq!(
            shown.lines().next(),
            shown.lines().last(),
            "the modes of the terminal are those of before: {shown:?}"
        );
    }
}
