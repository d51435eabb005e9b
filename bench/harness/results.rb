# frozen_string_literal: true

require "fileutils"
require "json"
require "time"
require_relative "machine"

module Bench
  # The files that runs leave, and the one that the documentation shows.
  module Results
    DIRECTORY = File.expand_path("../results", __dir__)
    # In the repository; the others are not.
    PUBLISHED = File.join(DIRECTORY, "published.json")

    module_function

    # @param outcomes [Array<Hash>]
    # @param whole [Boolean] whether all cases ran, in full
    # @param date [Time] names its file
    # @return [Hash{String => Object}]
    def build(outcomes, versions:, threads:, seconds:, whole:, machine: Machine.facts, date: Time.now)
      { "date" => date.utc.iso8601, "machine" => machine.transform_keys(&:to_s), "threads" => threads,
        "versions" => versions, "seconds" => seconds.round, "whole" => whole, "cases" => outcomes }
    end

    # @return [String] the path of the new file
    def write(result, directory: DIRECTORY)
      FileUtils.mkdir_p(directory)
      path = File.join(directory, "#{result.fetch("date").delete("-:")}.json")
      File.write(path, JSON.pretty_generate(result) << "\n")
      path
    end

    # @return [Hash{String => Object}]
    def read(path)
      JSON.parse(File.read(path))
    end

    # The newest run that was whole, or the published one.
    #
    # @return [String]
    # @raise [RuntimeError] when there is neither
    def latest(directory: DIRECTORY)
      runs = Dir[File.join(directory, "[0-9]*.json")].sort.reverse
      runs.find { |path| read(path)["whole"] } ||
        [File.join(directory, "published.json")].find { |path| File.exist?(path) } ||
        raise("no results in #{directory}: run `rake bench` first")
    end
  end
end
