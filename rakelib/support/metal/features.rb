# frozen_string_literal: true

require "open3"
require_relative "../build"

module Tasks
  module Metal
    # Each candle crate compiles its Metal code under its own feature: without it, it fails at run time with
    # "no metal implementation for …". What only tests and benches depend on does not count.
    class Features
      CRATES = %w[candle-core candle-nn].freeze
      # Shaders and their launchers, which have no such feature.
      KERNELS = /-kernels\z/

      # @return [Boolean] whether these are the gem's candle crates, and all of them have `metal` on macOS, Intel or
      #   Apple, and none elsewhere
      def run
        [expect("aarch64-apple-darwin", CRATES), expect("x86_64-apple-darwin", CRATES),
         expect("x86_64-unknown-linux-gnu", [])].all?
      end

      # @param tree [String] what `cargo tree --edges features --prefix none` prints
      # @return [Array<String>] the candle crates in it
      def self.crates(tree)
        tree.scan(/^(candle-[\w-]+) v/).flatten.uniq.sort.grep_v(KERNELS)
      end

      # @return [Array<String>] those whose `metal` is on
      def self.crates_with_metal(tree)
        tree.scan(/^(candle-[\w-]+) feature "metal"/).flatten.uniq.sort
      end

      private

      def expect(target, wanted)
        tree = shipped(target)
        found = self.class.crates_with_metal(tree)
        puts "#{target}: metal in #{found.empty? ? "no candle crate" : found.join(", ")}"
        warn "#{target}: expected metal in #{wanted.inspect}" unless found == wanted
        crates = self.class.crates(tree)
        warn "#{target}: the gem has the candle crates #{crates.inspect}, not #{CRATES.inspect}" unless crates == CRATES
        found == wanted && crates == CRATES
      end

      def shipped(target)
        output, status = Open3.capture2("cargo", "tree", "--locked", "--edges", "features,no-dev", "--prefix", "none",
                                        "--target", target, "--package", "red-candle-ext", chdir: Build::ROOT)
        raise "cargo tree failed for #{target}" unless status.success?

        output
      end
    end
  end
end
