# frozen_string_literal: true

module Candle
  class Server
    # OpenAI's `/v1/files`: what batches read and write.
    #
    # @api private
    class OpenAIFiles < OpenAI
      PURPOSES = %w[batch user_data].freeze
      # How long files stay where the client does not say it, in seconds.
      LIFETIME = 30 * 24 * 3600
      # How long they may be asked to stay.
      LIFETIMES = (3600..LIFETIME)
      # How many a page of a list has.
      PAGE = 10_000
      # So much is sent at a time.
      CHUNK = 64 * 1024
      private_constant :PURPOSES, :LIFETIMES, :PAGE, :CHUNK

      # @param request [Request]
      # @return [Array] an answer of Rack
      def create(request)
        # The form around a file is small.
        Multipart.read(request.env, limit: limits.file_bytes + (64 * 1024)) do |form|
          upload = form["file"]
          raise invalid("file is missing", param: "file") unless upload.is_a?(Multipart::Upload)

          check(upload)
          json(shown(keep(upload, purpose(form), lifetime(form))))
        end
      end

      # @param request [Request]
      # @return [Array] an answer of Rack: a page of all files
      def list(request)
        found = storage.list("files")
        purpose = request.query["purpose"]
        found = found.select { |file| file[:purpose] == purpose } if purpose
        json(page(request, found, PAGE) { |file| shown(file) })
      end

      # @param request [Request]
      # @return [Array] an answer of Rack: one file
      def show(request)
        json(shown(file(request)))
      end

      # @param request [Request]
      # @return [Array] an answer of Rack
      def delete(request)
        found = file(request)
        if storage.list("batches").any? { |batch| batch[:input_file_id] == found[:id] && Batches.open?(batch) }
          raise Problem.new(409, "file_in_use", "a batch reads this file: cancel it first")
        end

        storage.delete("files", found[:id])
        json({ id: found[:id], object: "file", deleted: true })
      end

      # @param request [Request]
      # @return [Array] an answer of Rack: the bytes
      def content(request)
        path = storage.place("files", file(request)[:id], "data")
        headers = { "content-type" => "application/octet-stream", "content-length" => File.size(path).to_s,
                    "content-disposition" => "attachment", "x-content-type-options" => "nosniff" }
        [200, headers, bytes_of(path)]
      end

      private

      def storage
        services.storage
      end

      def file(request)
        id = request.path.split("/")[3]
        storage.read("files", id) || raise(Problem.new(404, "not_found", "there is no file #{id.inspect[0, 60]}"))
      end

      def check(upload)
        if upload.size > limits.file_bytes
          raise Problem.new(413, "file_too_large", "the file is larger than the #{limits.file_bytes} bytes that the " \
                                                   "server takes", param: "file")
        end
        raise invalid("the file is empty", param: "file") if upload.size.zero?
        return if upload.size <= storage.room

        raise Problem.new(413, "storage_full", "the files of this server take #{limits.storage_bytes} bytes at most: " \
                                               "delete some first", param: "file")
      end

      def purpose(form)
        purpose = form["purpose"]
        return purpose if PURPOSES.include?(purpose)

        raise invalid("purpose must be #{PURPOSES.join(" or ")}", param: "purpose")
      end

      def lifetime(form)
        seconds = form["expires_after[seconds]"] or return LIFETIME
        return seconds.to_i if seconds.match?(/\A\d{1,9}\z/) && LIFETIMES.cover?(seconds.to_i)

        raise invalid("expires_after.seconds must be from #{LIFETIMES.min} to #{LIFETIMES.max}", param: "expires_after")
      end

      def keep(upload, purpose, lifetime)
        now = Time.now.to_i
        name = File.basename(upload.name.to_s.tr("\\", "/"))[0, 255]
        record = { id: storage.name("file-"), created_at: now, expires_at: now + lifetime, filename: name,
                   purpose: purpose }
        storage.add_file(record) { |path| FileUtils.cp(upload.file.path, path) }
      end

      def shown(file)
        { id: file[:id], object: "file", bytes: file[:bytes], created_at: file[:created_at],
          expires_at: file[:expires_at], filename: file[:filename], purpose: file[:purpose], status: "processed" }
      end

      def bytes_of(path)
        Enumerator.new do |pieces|
          File.open(path, "rb") do |file|
            while (bytes = file.read(CHUNK))
              pieces << bytes
            end
          end
        end
      end
    end
  end
end
