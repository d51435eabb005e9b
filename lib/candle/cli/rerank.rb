# frozen_string_literal: true

require "digest"
require "fileutils"
require "json"

module Candle
  class CLI
    # `red-candle rerank`. With a file to write, scores are kept beside it as they come, so that a run that was broken
    # off goes on where it stopped; the file itself is written when all are there.
    #
    # @api private
    class Rerank < Verb
      # Texts that are computed together.
      SLICE = 64
      private_constant :SLICE

      # @param query [String]
      # @param files [Array<String>]
      # @return [void]
      def call(query, files)
        Records.check(files)
        records = Records.new(files, field: options[:field])
        return write(query, files, records) if options[:output]

        texts = records.to_a
        print_ranked(load_model(:reranker, options[:model]).rerank(query, texts, top_k: options[:top])) if texts.any?
      end

      private

      def print_ranked(found)
        writer = Writer.new(nil, format: options[:format]) if options[:format]
        found.each do |entry|
          result = { index: entry[:doc_id], score: entry[:score] }
          next writer.write(entry[:text], result) if writer

          show(result.merge(text: entry[:text])) { puts format("%<score>.4f  %<text>s", entry) }
        end
      end

      def write(query, files, records)
        part = "#{options[:output]}.#{Digest::SHA256.hexdigest("#{options[:model]}\n#{query}")[0, 8]}.part"
        score(query, records, part, files.any? ? records.count : nil)
        FileUtils.rm_f(options[:output])
        writer = Writer.new(options[:output], format: options[:format] || "jsonl")
        ranked(part).each { |entry| writer.write(entry[:text], entry.except(:text)) }
        writer.close
        File.delete(part)
      end

      def ranked(part)
        found = File.foreach(part, encoding: "UTF-8").map { |line| JSON.parse(line, symbolize_names: true) }
        found.sort_by { |entry| [-entry[:score], entry[:index]] }.first(options[:top] || found.size)
      end

      def score(query, records, part, total)
        writer = Writer.new(part, format: "jsonl")
        Terminal.note("#{writer.done} are done already") if writer.done.positive?
        model = load_model(:reranker, options[:model])
        progress = Progress.for(true)
        records.lazy.drop(writer.done).each_slice(SLICE) do |slice|
          ranked = model.rerank(query, slice).sort_by { |entry| entry[:doc_id] }
          ranked.each { |entry| writer.write(entry[:text], { index: writer.done, score: entry[:score] }) }
          progress&.call(writer.done, total || writer.done)
        end
      ensure
        writer&.close
      end
    end
  end
end
