# frozen_string_literal: true

module Candle
  module ActiveRecord
    # A search through all vectors of a relation, for SQLite without an extension that compares them: the vectors are
    # read in pages and compared here. Exact, and limited by {ActiveRecord.scan_limit}.
    #
    # @api private
    class Scan
      # So many vectors are read at once.
      PAGE = 4096

      # @param relation [ActiveRecord::Relation] what is searched
      # @param embedding [Embedding]
      # @param vector [String] packed little-endian f32
      # @param limit [Integer] how many records are wanted
      # @param distance [Symbol] one of {Search::DISTANCES}
      def initialize(relation, embedding, vector, limit:, distance:)
        @relation = relation.where.not(embedding.column => nil)
        @klass = relation.klass
        @embedding = embedding
        @type = embedding.type(@klass)
        @vector = vector
        @limit = limit
        @distance = distance
        query = @type == :int8 ? Codec.quantize(vector, :int8).unpack("c*") : vector.unpack("e*")
        @query = Tensor.new(query, :f32)
      end

      # @param columns [Array<Arel::Attribute>] what is loaded of a record, where the relation does not say it
      # @return [Array<ActiveRecord::Base>] nearest first, each with its `neighbor_distance`
      # @raise [Error] where there are more vectors than are compared here
      def results(columns)
        best = nearest
        records = loaded(best.map(&:first), columns).to_h { |record| [record.id, record] }
        best.filter_map do |key, distance|
          record = records[key] or next
          record[:neighbor_distance] = distance
          record.clear_attribute_changes(["neighbor_distance"])
          record
        end
      end

      private

      # @return [Array<Array(Object, Float)>] keys and distances, nearest first
      def nearest
        pages.reduce([]) do |best, page|
          found = distances(page.map(&:last)).map { |index, distance| [page[index].first, distance] }
          (best + found).each_with_index.min_by(@limit) { |(_, distance), index| [distance, index] }.map(&:first)
        end
      end

      # @return [Enumerator] of Arrays of keys and bytes
      def pages
        key = @klass.arel_table[@klass.primary_key]
        rows = @relation.except(:select, :order, :limit, :offset).reorder(key.asc).limit(PAGE)
        Enumerator.new do |pages|
          count = 0
          last = nil
          loop do
            page = (last.nil? ? rows : rows.where(key.gt(last))).pluck(key, Arel.sql(bytes_column))
            check_limit(count += page.size)
            pages << page if page.any?
            break if page.size < PAGE

            last = page.last.first
          end
        end
      end

      def bytes_column
        "CAST(#{@klass.quoted_table_name}.#{@klass.connection.quote_column_name(@embedding.column)} AS BLOB)"
      end

      # @param rows [Array<String>] bytes of vectors
      # @return [Array<Array(Integer, Float)>] the nearest of them, and how far they are
      def distances(rows)
        matrix = matrix(rows)
        return matrix.nearest(@query, top_k: @limit).map { |index, score| [index, 1.0 - score] } if cosine?

        found = @distance == :euclidean ? lengths(matrix) : products(matrix).map(&:-@)
        found.each_with_index.min_by(@limit, &:first).map { |distance, index| [index, distance] }
      end

      # Signs are compared with the query's own numbers, by their angle alone.
      def cosine?
        @distance == :cosine || @type == :bit
      end

      def lengths(matrix)
        (matrix - @query).sqr.sum(1).values.map { |square| Math.sqrt(square) }
      end

      def products(matrix)
        matrix.matmul(@query.reshape([@query.elem_count, 1])).flatten_all.values
      end

      def matrix(rows)
        dimension = @query.elem_count
        bytes = rows.map(&:b)
        wanted = { int8: dimension, bit: (dimension + 7) / 8 }.fetch(@type, 4 * dimension)
        raise Error, other_dimension if bytes.any? { |row| row.bytesize != wanted }
        return Tensor.from_packed(bytes.join, [rows.size, dimension], :f32) if @type == :vector

        Tensor.new(bytes.map { |row| @type == :int8 ? row.unpack("c*") : signs(row, dimension) }, :f32)
      end

      def signs(row, dimension)
        Codec.signs(row.unpack1("B#{dimension}"))
      end

      def loaded(keys, columns)
        relation = @relation.except(:order, :limit, :offset).where(@klass.primary_key => keys)
        relation = relation.select(*columns) if relation.select_values.empty?
        relation.select(Arel.sql("NULL AS neighbor_distance")).to_a
      end

      def check_limit(count)
        return if count <= ActiveRecord.scan_limit

        raise Error, "#{@klass.table_name} has more than #{ActiveRecord.scan_limit} vectors to compare: load the " \
                     "sqlite-vec extension into each connection, as the sqlite_vec gem or Rails' `extensions:` do, " \
                     "narrow the relation, or raise Candle::ActiveRecord.scan_limit"
      end

      def other_dimension
        "#{@klass.table_name}.#{@embedding.column} has vectors of other dimensions than the query's " \
          "#{@query.elem_count}: embed the records again"
      end
    end
  end
end
