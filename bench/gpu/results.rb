# frozen_string_literal: true

require "json"

module GpuBench
  # What was found, as a table and as JSON.
  class Results
    Record = Struct.new(:section, :name, :kind, :ours, :peer, :unit, :target, :passed, :note, keyword_init: true)

    attr_reader :records

    def initialize(about)
      @about = about
      @records = []
    end

    # A difference that must stay below a limit.
    def parity(section, name, value, limit, note: nil)
      add(section: section, name: name, kind: "parity", ours: value, unit: "off", target: "<= #{limit}",
          passed: !value.nan? && value <= limit, note: note)
    end

    # Something that is so, or not.
    def fact(section, name, passed, note: nil)
      add(section: section, name: name, kind: "fact", passed: passed ? true : false, note: note)
    end

    # A time in milliseconds, or a rate where more is better.
    #
    # @param times_faster [Float, nil] how many times as fast as the peer it must be
    def speed(section, name, ours, peer, unit: "ms", times_faster: nil, note: nil)
      ratio = peer && (unit == "ms" ? peer / ours : ours / peer)
      add(section: section, name: name, kind: "speed", ours: ours, peer: peer, unit: unit,
          target: times_faster && ">= #{times_faster} x", passed: times_faster && ratio && ratio >= times_faster,
          note: [ratio && "#{ratio.round(2)} x", note].compact.join(", "))
    end

    # A share of what the hardware could do.
    def share(section, name, value, least, note: nil)
      add(section: section, name: name, kind: "share", ours: value, unit: "of limit", target: ">= #{least}",
          passed: value >= least, note: note)
    end

    # @return [Boolean] whether nothing that has a target missed it
    def passed?
      @records.none? { |record| record.passed == false }
    end

    def write(path)
      File.write(path, JSON.pretty_generate(about: @about, records: @records.map(&:to_h)))
    end

    def print_all
      puts "", @about.map { |key, value| "#{key}: #{value}" }.join("  ")
      print_line(HEADER)
      @records.each { |record| print_record(record) }
      reached, missed, free = [true, false, nil].map { |verdict| @records.count { |r| r.passed == verdict } }
      puts "", "#{reached} reached, #{missed} missed, #{free} without target"
    end

    WIDTHS = [-9, -44, 11, 11, -9, -9, -4, -1].freeze
    HEADER = %w[section case ours PyTorch unit target].freeze
    private_constant :WIDTHS, :HEADER

    private

    def add(**fields)
      @records << Record.new(**fields)
      print_record(@records.last)
      $stdout.flush
    end

    def print_record(record)
      verdict = { true => "ok", false => "MISS", nil => "" }.fetch(record.passed)
      print_line([record.section, record.name[0, 44], number(record.ours), number(record.peer), record.unit,
                  record.target, verdict, record.note])
    end

    def print_line(cells)
      padded = cells.zip(WIDTHS).map do |cell, width|
        width.negative? ? cell.to_s.ljust(-width) : cell.to_s.rjust(width)
      end
      puts padded.join(" ").rstrip
    end

    def number(value)
      return "" if value.nil?

      value.abs < 0.01 && value != 0 ? format("%.1e", value) : format("%.3f", value)
    end
  end
end
