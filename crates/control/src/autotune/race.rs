//! Finds the best value when every measurement is noisy: all values run, the slower half drops out,
//! the rest runs again, and so on.

/// How much better than the current value another one must be to replace it.
const ADVANTAGE: f64 = 1.02;

#[derive(Debug)]
pub(super) struct Race {
    /// All values; the first is the current one.
    entrants: Vec<Entrant>,
    /// The entrants of this round, in order, and whose turn it is.
    round: Vec<usize>,
    turn: usize,
    points_left: usize,
}

#[derive(Debug)]
struct Entrant {
    value: u64,
    total: f64,
    runs: u32,
}

impl Entrant {
    fn mean(&self) -> f64 {
        self.total / f64::from(self.runs.max(1))
    }
}

impl Race {
    /// A race between `current` and the others, with at most `runs` runs. If there are fewer runs
    /// than others, only some of the others take part, evenly spaced.
    pub(super) fn new(current: u64, others: &[u64], runs: usize) -> Race {
        let others: Vec<u64> = others.iter().copied().filter(|value| *value != current).collect();
        let room = runs.saturating_sub(1).max(1).min(others.len());
        let chosen = (0..room).map(|index| others[index * others.len() / room]);
        let entrant = |value| Entrant { value, total: 0.0, runs: 0 };
        let entrants: Vec<Entrant> = std::iter::once(current).chain(chosen).map(entrant).collect();
        let round: Vec<usize> = (0..entrants.len()).collect();
        let points_left = runs.max(round.len()) - round.len();
        Race { entrants, round, turn: 0, points_left }
    }

    /// The value to be measured.
    pub(super) fn runner(&self) -> u64 {
        let turn = self.turn.min(self.round.len() - 1);
        self.entrants[self.round[turn]].value
    }

    /// Records the score of the runner.
    pub(super) fn score(&mut self, score: f64) {
        let Some(runner) = self.round.get(self.turn) else { return };
        let entrant = &mut self.entrants[*runner];
        entrant.total += score;
        entrant.runs += 1;
        self.turn += 1;
        if self.turn == self.round.len() {
            self.next_round();
        }
    }

    /// The best value and its mean score, when the race is over.
    pub(super) fn winner(&self) -> Option<(u64, f64)> {
        if self.turn < self.round.len() {
            return None;
        }
        let current = &self.entrants[0];
        let fastest = &self.entrants[*self.ranking().first()?];
        let winner = if fastest.mean() > current.mean() * ADVANTAGE { fastest } else { current };
        Some((winner.value, winner.mean()))
    }

    /// The faster half runs again, in reverse order, so that a machine that slows down over time
    /// favors no value; unless only one is left, or too few runs for another round.
    fn next_round(&mut self) {
        let ranking = self.ranking();
        let kept = ranking.len().div_ceil(2);
        if ranking.len() < 2 || kept < 2 || kept > self.points_left {
            return;
        }
        let mut next: Vec<usize> = ranking[..kept].to_vec();
        next.sort_unstable();
        if self.round.first() < self.round.last() {
            next.reverse();
        }
        self.points_left -= kept;
        (self.round, self.turn) = (next, 0);
    }

    /// This round's entrants, fastest first.
    fn ranking(&self) -> Vec<usize> {
        let mut ranking = self.round.clone();
        let mean = |index: &usize| self.entrants[*index].mean();
        ranking.sort_by(|a, b| mean(b).total_cmp(&mean(a)));
        ranking
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs to the end; returns the values in the order they ran, and the winner.
    fn run(mut race: Race, speed: impl Fn(u64) -> f64) -> (Vec<u64>, u64) {
        let mut ran = Vec::new();
        loop {
            if let Some((winner, _)) = race.winner() {
                return (ran, winner);
            }
            ran.push(race.runner());
            race.score(speed(race.runner()));
        }
    }

    #[test]
    fn the_slower_half_drops_out_each_time() {
        let (ran, winner) = run(Race::new(4, &[1, 2, 3, 4, 5, 6, 7, 8], 20), |value| value as f64);
        assert_eq!(ran, [4, 1, 2, 3, 5, 6, 7, 8, 8, 7, 6, 5, 7, 8]);
        assert_eq!(winner, 8);
    }

    #[test]
    fn a_race_never_exceeds_its_runs() {
        for runs in 0..40 {
            for others in 1..9u64 {
                let others: Vec<u64> = (1..=others).collect();
                let (ran, winner) = run(Race::new(1, &others, runs), |value| value as f64);
                assert!(ran.len() <= runs.max(2), "{runs}: {ran:?}");
                assert_eq!(winner, *ran.iter().max().unwrap());
            }
        }
    }

    #[test]
    fn a_tiny_advantage_does_not_replace_the_current_value() {
        let (_, winner) =
            run(Race::new(5, &[1, 2, 3], 20), |value| if value == 2 { 1.01 } else { 1.0 });
        assert_eq!(winner, 5);
    }
}
