# frozen_string_literal: true

require "fileutils"
require "json"
require "open3"
require "time"
require_relative "../../rakelib/support/build"
require_relative "gguf"
require_relative "machine"
require_relative "models"
require_relative "results"
require_relative "suite"

module Bench
  # What this machine reads and multiplies at most, measured by `bench/limits.rs`.
  module Limits
    SOURCE = File.expand_path("../limits.rs", __dir__)
    PATH = File.join(Results::DIRECTORY, "limits.json")

    module_function

    # Measures and writes the file that the pictures are drawn from. On the same machine a value never falls: what it
    # has once reached it can reach, and another process only hides it.
    #
    # @param threads [Integer]
    # @return [String] the path of the file
    def update(threads: Etc.nprocessors, path: PATH)
      former = File.exist?(path) ? Results.read(path) : {}
      found = { "date" => Time.now.utc.iso8601, "machine" => Machine.facts.transform_keys(&:to_s),
                **measure(threads), "weights" => weights(former) }
      File.write(path, JSON.pretty_generate(same?(former, found) ? best(former, found) : found) << "\n")
      path
    end

    # @param milliseconds [Integer] for each of its values
    # @return [Hash{String => Object}] what the program prints
    def measure(threads, milliseconds: 2000)
      output, status = Open3.capture2(program, threads.to_s, milliseconds.to_s)
      raise "the limits could not be measured: #{program} ended with #{status.exitstatus}" unless status.success?

      JSON.parse(output)
    end

    # @return [String] the program, compiled where it is older than its source
    def program
      target = File.join(Tasks::Build.target_directory, "limits")
      unless File.exist?(target) && File.mtime(target) > File.mtime(SOURCE)
        FileUtils.mkdir_p(File.dirname(target))
        system("rustc", "-O", "--edition", "2021", SOURCE, "-o", target, exception: true)
      end
      target
    end

    # @param former [Hash] keeps the sizes of files that are not here
    # @return [Hash{String => Integer}] bytes of weights that a token needs, by the type of the language model
    def weights(former)
      here = Suite::TYPES.select { |type| Models.gguf?(type) }
      former.fetch("weights", {}).merge(here.to_h { |type| [type, Gguf.bytes_per_token(Models.gguf(type))] })
    end

    def same?(former, found)
      key = lambda { |one|
        [*one["machine"].to_h.values_at("processor", "cores", "system"), *one.values_at("threads", "level")]
      }
      key.call(former) == key.call(found)
    end

    def best(former, found)
      reading = found["reading"].zip(former["reading"]).map do |now, before|
        before && before["mebibytes"] == now["mebibytes"] ? [now, before].max_by { |one| one["bytes_per_second"] } : now
      end
      operations = found["operations_per_second"].merge(former["operations_per_second"]) { |_, *rates| rates.max }
      found.merge("reading" => reading, "operations_per_second" => operations)
    end
  end
end
