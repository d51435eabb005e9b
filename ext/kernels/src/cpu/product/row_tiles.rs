//! How the rows of a task become tiles of a kernel.

/// Runs `$tile` for the rows `0..$rows` in tiles of as many rows as `$HEIGHT` says, `$row` being the
/// first: the tallest of at most `$most` rows first, lower ones for what is left.
///
/// A tile of fewer rows than `least`, which takes as long as one of so many, is avoided by one before it that is not
/// the tallest.
macro_rules! in_row_tiles {
    ($rows:expr, most $most:expr, ($row:ident, $HEIGHT:ident) => $tile:expr) => {
        in_row_tiles!($rows, most $most, least 1, ($row, $HEIGHT) => $tile)
    };
    ($rows:expr, most $most:expr, least $least:expr, ($row:ident, $HEIGHT:ident) => $tile:expr) => {
        in_row_tiles!(@heights [12 8 6 4 3 2 1] $rows, $most, $least, $row, $HEIGHT, $tile)
    };
    (@heights [$($height:literal)*] $rows:expr, $most:expr, $least:expr, $row:ident, $HEIGHT:ident, $tile:expr) => {{
        let rows: usize = $rows;
        let mut $row = 0;
        $(
            if const { $height <= $most } {
                const $HEIGHT: usize = $height;
                let leaves_few = |left: usize| left > 0 && left < $least && $HEIGHT > $least;
                while rows - $row >= $HEIGHT && !leaves_few(rows - $row - $HEIGHT) {
                    $tile;
                    $row += $HEIGHT;
                }
            }
        )*
        let _ = $row;
    }};
}
pub(crate) use in_row_tiles;

#[cfg(test)]
mod tests {
    fn heights(rows: usize) -> Vec<usize> {
        let mut heights = Vec::new();
        in_row_tiles!(rows, most 6, least 3, (row, HEIGHT) => {
            assert_eq!(row, heights.iter().sum::<usize>());
            heights.push(HEIGHT);
        });
        heights
    }

    #[test]
    fn tiles_cover_the_rows_and_avoid_low_ones() {
        for rows in 0..200 {
            let heights = heights(rows);
            assert_eq!(heights.iter().sum::<usize>(), rows);
            let low = heights.iter().filter(|&&height| height < 3).count();
            // Five rows are three and two.
            let is_there = rows % 6 == 5 || [1, 2].contains(&rows);
            assert_eq!(low, usize::from(is_there), "{heights:?}");
        }
        assert_eq!(heights(7), [4, 3]);
        assert_eq!(heights(8), [4, 4]);
        assert_eq!(heights(14), [6, 4, 4]);
        let mut tallest_first = Vec::new();
        in_row_tiles!(15, most 12, (_row, HEIGHT) => tallest_first.push(HEIGHT));
        assert_eq!(tallest_first, [12, 3]);
    }
}
