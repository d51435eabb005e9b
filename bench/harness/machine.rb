# frozen_string_literal: true

require "etc"
require_relative "peers"

module Bench
  # Where a bench ran.
  module Machine
    # The build under test can't be measured.
    class DebugBuild < StandardError; end

    SETS = %w[avx2 avx_vnni avx512f avx512_vnni avx512_bf16 amx_bf16 amx_int8].freeze
    # Best first; of vectors of bf16 the name does not say whether they are chosen.
    LEVELS = { "amx" => %w[amx_bf16 amx_int8 amx_tile], "avx512vnni" => %w[avx512_vnni], "avx512" => %w[avx512f],
               "avxvnni" => %w[avx2 avx_vnni], "avx2" => %w[avx2] }.freeze
    # Above this, something else is working and times mean little.
    BUSY = 0.5

    module_function

    # @return [Hash{Symbol => Object}]
    def facts
      { processor: processor, cores: Etc.nprocessors, instruction_sets: SETS & Peers.cpu_flags, level: level,
        memory_gigabytes: memory, system: Etc.uname.values_at(:sysname, :release, :machine).join(" "),
        ruby: RUBY_DESCRIPTION, load: load_average }
    end

    # @return [String] the instruction set that our kernels take: what is forced, or the best there is
    def level
      forced = ENV.fetch("CANDLE_CPU_ISA", "")
      return forced unless forced.empty?

      LEVELS.find { |_, needed| (needed - Peers.cpu_flags).empty? }&.first || "scalar"
    end

    # @return [String]
    def processor
      File.foreach("/proc/cpuinfo").find { |line| line.start_with?("model name") }.to_s.split(": ", 2).last.to_s.strip
    rescue Errno::ENOENT
      `sysctl -n machdep.cpu.brand_string`.strip
    end

    def memory
      (File.foreach("/proc/meminfo").first.split[1].to_i / 1e6).round(1)
    rescue Errno::ENOENT
      (`sysctl -n hw.memsize`.to_i / 1e9).round(1)
    end

    # @return [Float, nil] processes that wanted to run, over the last minute
    def load_average
      File.read("/proc/loadavg").to_f
    rescue Errno::ENOENT
      nil
    end

    # @param build [Hash{Symbol => Object}] what `Candle.build_info` says
    # @raise [DebugBuild]
    def refuse_debug(build)
      return unless build.fetch(:debug)

      raise DebugBuild,
            "the extension is a debug build, whose times mean nothing: build it with `rake compile`, which is release"
    end
  end
end
